# A server without bounds: one client at a time, each for as long as it likes. Ends by itself.
import http.server, threading, os

server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print(server.server_port, flush=True)
threading.Timer(60, lambda: os._exit(0)).start()
server.serve_forever()
