# A server without bounds: one client at a time, each for as long as it likes. Ends by itself.
import http.server, threading, os


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Quiet)
# A client that leaves early is part of the attack; its traceback in the output of a test that passes is not wanted.
server.handle_error = lambda *_: None
print(server.server_port, flush=True)
threading.Timer(60, lambda: os._exit(0)).start()
server.serve_forever()
