"""An application for both sandboxes. GET /r?d=JSON answers exactly what JSON says: {"status","headers":[[k,v]],"body"}.
/echo answers the request's headers. /ws is a WebSocket that sends a counter every half second. /sse the same as events.
/log answers what was asked so far. Usage: python3 app.py PORT"""
import base64, hashlib, json, sys, time, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit, parse_qs
LOG = []
class H(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def say(self, status, headers, body):
        body = body.encode()
        self.send_response_only(status)
        for k, v in headers: self.send_header(k, v)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD": self.wfile.write(body)
    def do_POST(self):
        n = int(self.headers.get("content-length") or 0)
        got = self.rfile.read(n).decode(errors="replace") if n else ""
        self.do_GET(got)
    do_PUT = do_HEAD = do_OPTIONS = do_DELETE = lambda self: self.do_GET()
    def do_GET(self, got=""):
        u = urlsplit(self.path)
        if u.path == "/log":
            return self.say(200, [("content-type", "application/json"), ("cache-control", "no-store")], json.dumps(LOG))
        LOG.append({"m": self.command, "p": self.path, "h": list(self.headers.items()), "b": got[:2000]})
        del LOG[:-200]
        if u.path == "/r":
            d = json.loads(parse_qs(u.query)["d"][0])
            return self.say(d.get("status", 200), d.get("headers", []), d.get("body", ""))
        if u.path == "/echo":
            return self.say(200, [("content-type", "application/json"), ("cache-control", "no-store")], json.dumps(list(self.headers.items())))
        if u.path == "/ws":
            key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response_only(101)
            self.send_header("upgrade", "websocket"); self.send_header("connection", "upgrade")
            self.send_header("sec-websocket-accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
            self.end_headers()
            for i in range(240):
                m = f"tick {i}".encode(); self.wfile.write(b"\x81" + bytes([len(m)]) + m); self.wfile.flush(); time.sleep(.5)
            return
        if u.path == "/sse":
            self.send_response_only(200); self.send_header("content-type", "text/event-stream"); self.send_header("connection", "close"); self.end_headers()
            for i in range(240):
                self.wfile.write(f"data: tick {i}\n\n".encode()); self.wfile.flush(); time.sleep(.5)
            return
        return self.say(200, [("content-type", "text/html"), ("cache-control", "no-store")], "<title>app</title>page")
ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), H).serve_forever()
