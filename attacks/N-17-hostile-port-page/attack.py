# Runs inside two sandboxes. One is the victim: a page that reads its own secret and goes on to the address it was given. The other
# is hostile: a page that tries to get at the first with what the browser has.
import base64, hashlib, json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

seen, reports = [], []
MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

VICTIM = b"""<!doctype html><title>victim</title><script>
(async () => {
  const secret = await (await fetch('/secret?by=own')).text();
  const opened = await new Promise(done => {
    const ws = new WebSocket(location.origin.replace('http', 'ws') + '/ws?by=own-ws');
    ws.onopen = () => done(true);
    ws.onerror = () => done(false);
  });
  await fetch('/report', {method: 'POST', body: JSON.stringify({secret, opened})});
  location = new URLSearchParams(location.search).get('go');
})();
</script>"""

HOSTILE = b"""<!doctype html><title>hostile</title><body><script>
const asked = new URLSearchParams(location.search);
const victim = asked.get('victim'), api = asked.get('api');
const attempt = async work => { try { return await work(); } catch (error) { return 'refused'; } };
const loaded = (kind, url) => new Promise(done => {
  const one = document.createElement(kind);
  one.onload = () => done('loaded');
  one.onerror = () => done('refused');
  one.src = url;
  document.body.append(one);
  setTimeout(() => done('silent'), 3000);
});
(async () => {
  const report = {};
  report.read = await attempt(async () => (await fetch(victim + '/secret?by=read', {credentials: 'include'})).text());
  report.blind = await attempt(async () =>
    (await fetch(victim + '/secret?by=blind', {mode: 'no-cors', credentials: 'include'})).type);
  report.image = await loaded('img', victim + '/secret?by=image');
  report.script = await loaded('script', victim + '/secret?by=script');
  report.frame = await attempt(async () => {
    const frame = document.createElement('iframe');
    frame.src = victim + '/secret?by=frame';
    document.body.append(frame);
    await new Promise(done => setTimeout(done, 1000));
    return frame.contentWindow.document.body.innerText;
  });
  await attempt(async () => {
    const frame = document.createElement('iframe');
    frame.name = 'target';
    const form = document.createElement('form');
    Object.assign(form, {method: 'post', action: victim + '/secret?by=form', target: 'target'});
    document.body.append(frame, form);
    form.submit();
    await new Promise(done => setTimeout(done, 1000));
  });
  report.socket = await attempt(() => new Promise(done => {
    const ws = new WebSocket(victim.replace('http', 'ws') + '/ws?by=socket');
    ws.onopen = () => done('open');
    ws.onerror = () => done('refused');
  }));
  report.api = await attempt(async () => (await fetch(api + '/v1/sandboxes', {credentials: 'include'})).text());
  report.health = await attempt(async () => (await fetch(api + '/healthz')).text());
  report.headers = await attempt(async () =>
    (await fetch(api + '/', {headers: {'bellglass-sandbox': 'x', 'bellglass-port': '1'}})).text());
  report.worker = await attempt(async () => (await navigator.serviceWorker.register(victim + '/sw.js')).scope);
  document.cookie = 'bellglass=evil; path=/; domain=' + location.hostname.split('.').slice(1).join('.');
  document.cookie = 'planted=1; path=/; domain=' + location.hostname.split('.').slice(1).join('.');
  report.cookie = document.cookie;
  await fetch('/report', {method: 'POST', body: JSON.stringify(report)});
  location = victim + '/secret?by=visit';
})();
</script>"""


class Application(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def say(self, body, kind="text/html"):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = self.path.partition("?")[0]
        if "by=" in self.path:
            seen.append(self.path.partition("by=")[2])
        if path == "/victim":
            self.say(VICTIM)
        elif path == "/hostile":
            self.say(HOSTILE)
        elif path == "/told":
            self.say(json.dumps({"seen": seen, "reports": reports}).encode(), "application/json")
        elif path == "/ws":
            key = self.headers["sec-websocket-key"].encode()
            accept = base64.b64encode(hashlib.sha1(key + MAGIC).digest())
            self.wfile.write(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n")
            self.rfile.read(1)
            self.close_connection = True
        else:
            self.say(b"secret", "text/plain")

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path == "/report":
            reports.append(json.loads(body))
        else:
            seen.append(self.path.partition("by=")[2])
        self.say(b"")


server = ThreadingHTTPServer(("127.0.0.1", 8000), Application)
print("serving", flush=True)
server.serve_forever()
