# A server that breaks on everything. Ends by itself.
import http.server, os, threading


class Broken(http.server.BaseHTTPRequestHandler):
    def answer(self):
        self.send_response(500)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Broken)
print(server.server_port, flush=True)
threading.Timer(90, lambda: os._exit(0)).start()
server.serve_forever()
