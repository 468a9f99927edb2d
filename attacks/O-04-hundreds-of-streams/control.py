# A server with a thread for every stream: each says how many there are, then a byte now and then. Ends by itself.
import os, socketserver, threading, time


class Drip(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(b"%d\n" % threading.active_count())
        time.sleep(60)


socketserver.ThreadingTCPServer.request_queue_size = 256
server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Drip)
server.daemon_threads = True
print(server.server_address[1], flush=True)
threading.Timer(60, lambda: os._exit(0)).start()
server.serve_forever()
