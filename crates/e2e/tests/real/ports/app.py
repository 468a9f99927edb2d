# A small web application for the tests of ports: HTTP on 8000, an echo after the end of input on 9000, and on 9001 something
# that only says how it was greeted. Standard library only.
import base64, hashlib, json, os, select, socket, struct, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BLOCK = bytes((i * 7 + (i >> 8) * 13) & 255 for i in range(1 << 20))
MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
held = set()
greeting = []
# What the page was given. Its picture is taken when `/wait` has been answered.
given = {"ws": threading.Event(), "events": threading.Event()}

PAGE = b"""<!doctype html><title>ports</title>
<style>body{margin:0;display:flex} div{width:100px;height:100px;background:#f00}</style>
<div id=ws></div><div id=sse></div><div id=get></div><div id=js></div><img src=/wait hidden>
<script>
const green = id => document.getElementById(id).style.background = '#0f0';
green('js');
const ws = new WebSocket(location.origin.replace('http', 'ws') + '/ws');
ws.onopen = () => ws.send('from the page');
ws.onmessage = event => event.data == 'from the page' && green('ws');
let seen = '';
const events = new EventSource('/events?count=3');
events.onmessage = event => { seen += event.data; if (seen == '012') { green('sse'); events.close(); } };
fetch('/headers').then(answer => answer.text()).then(text => !text.includes('bellglass=') && green('get'));
</script>"""


class Application(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def say(self, body, kind="text/plain", status=200, more=()):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in more:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def number(self, name, default=0):
        for pair in self.path.partition("?")[2].split("&"):
            if pair.startswith(name + "="):
                return int(pair[len(name) + 1:])
        return default

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path == "/":
            self.say(PAGE, "text/html")
        elif path in ("/headers", "/v1/sandboxes", "/healthz"):
            self.say((f"{self.command} {self.path}\n{self.headers}").encode())
        elif path == "/teapot":
            self.say(b"no coffee", status=418, more=[("bellglass-error", "not_found"), ("set-cookie", "a=1")])
        elif path == "/events":
            self.events(self.number("count"))
        elif path == "/blocks":
            self.send_response(200)
            self.send_header("content-length", str(self.number("count") << 20))
            self.end_headers()
            for _ in range(self.number("count")):
                self.wfile.write(BLOCK)
        elif path == "/hold":
            self.hold()
        elif path == "/wait":
            for one in given.values():
                one.wait(20)
            time.sleep(1)
            self.say(b"")
        elif path == "/held":
            self.say(str(len(held)).encode())
        elif path == "/greeting":
            self.say(b"".join(greeting))
        elif path == "/die":
            self.send_response(200)
            self.send_header("content-length", "1000")
            self.end_headers()
            self.wfile.write(b"only this")
            self.wfile.flush()
            time.sleep(0.2)
            os._exit(1)
        elif path == "/ws":
            self.websocket()
        else:
            self.say(b"nothing", status=404)

    do_HEAD = do_DELETE = do_PATCH = do_OPTIONS = do_GET

    def do_POST(self):
        if self.path == "/never":
            held.add(self)
            while True:
                time.sleep(60)
        right = wrong = 0
        rest = b""
        for piece in self.body():
            rest += piece
            while len(rest) >= len(BLOCK):
                block, rest = rest[:len(BLOCK)], rest[len(BLOCK):]
                if block == BLOCK:
                    right += 1
                else:
                    wrong += 1
        self.say(json.dumps({"right": right, "wrong": wrong, "rest": len(rest)}).encode(), "application/json")

    do_PUT = do_POST

    def body(self):
        length = self.headers.get("content-length")
        if length is not None:
            left = int(length)
            while left:
                piece = self.rfile.read(min(left, 1 << 20))
                if not piece:
                    return
                left -= len(piece)
                yield piece
        elif self.headers.get("transfer-encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()

    def events(self, count):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for number in range(count):
            self.wfile.write(f"data: {number}\n\n".encode())
            self.wfile.flush()
            time.sleep(0.3)
        given["events"].set()
        self.hold(False)

    # Says nothing, and notices when the other side has gone.
    def hold(self, head=True):
        if head:
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"4\r\nheld\r\n")
            self.wfile.flush()
        held.add(self)
        try:
            while self.connection.recv(1, socket.MSG_PEEK):
                time.sleep(0.01)
        except OSError:
            pass
        held.discard(self)
        self.close_connection = True

    def websocket(self):
        key = self.headers["sec-websocket-key"].encode()
        accept = base64.b64encode(hashlib.sha1(key + MAGIC).digest())
        self.wfile.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n")
        held.add(self)
        try:
            while True:
                first, second = self.rfile.read(2)
                length = second & 127
                if length == 126:
                    length, = struct.unpack(">H", self.rfile.read(2))
                mask, data = self.rfile.read(4), self.rfile.read(length)
                data = bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))
                size = bytes([length]) if length < 126 else bytes([126]) + struct.pack(">H", length)
                self.wfile.write(bytes([first]) + size + data)
                given["ws"].set()
                if first & 15 == 8:
                    break
        except (OSError, ValueError):
            pass
        held.discard(self)
        self.close_connection = True


def echo(connection):
    said = b""
    try:
        while piece := connection.recv(1 << 16):
            said += piece
        connection.sendall(said[::-1])
    except OSError:
        pass
    connection.close()


def greet(connection):
    greeting.append(connection.recv(24))
    connection.close()


def listen(port, answer):
    listener = socket.create_server(("127.0.0.1", port))
    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


class Server(ThreadingHTTPServer):
    request_queue_size = 512


threading.Thread(target=listen, args=(9000, echo), daemon=True).start()
threading.Thread(target=listen, args=(9001, greet), daemon=True).start()
server = Server(("127.0.0.1", 8000), Application)
print("serving", flush=True)
server.serve_forever()
