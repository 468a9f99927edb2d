"""The command line and the Python SDK against servers that are not who they say: wrong host, expired, self-signed, a certificate for clients only, an untrusted
authority, a plain server, redirects to http and to another host, a proxy from the environment. Does a key ever leave?
BELLGLASS_CERTS is the directory of make_certs.sh, BELLGLASS the executable, BELLGLASS_SDK_PYTHON a Python with the SDK (its path in PYTHONPATH)."""
import socketserver, subprocess, threading
from common import *
CERTS, EXE = os.environ["BELLGLASS_CERTS"], os.environ["BELLGLASS"]; KEY = "bgk_" + "5e" * 32
class Seen(list): pass
def serve(cert=None, answer=None):
    """A server that writes down all it is told."""
    seen = []; l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen(50); port = l.getsockname()[1]; ctx = None
    if cert: ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); ctx.load_cert_chain(f"{CERTS}/{cert}.pem", f"{CERTS}/{cert}.key")
    def one(c):
        try:
            c.settimeout(3)
            if ctx: c = ctx.wrap_socket(c, server_side=True)
            d = c.recv(65536); seen.append(d)
            if answer: c.sendall(answer)
            c.close()
        except OSError as e: seen.append(repr(e).encode())
    def loop():
        while True: threading.Thread(target=one, args=(l.accept()[0],), daemon=True).start()
    threading.Thread(target=loop, daemon=True).start(); return port, seen
def env(**more): e = {k: v for k, v in os.environ.items() if not k.lower().endswith("proxy") and not k.startswith("BELLGLASS")}; e.update(BELLGLASS_API_KEY=KEY, **more); return e
def cli(url, ca=None, **more):
    a = [EXE, "--server", url, "--server-wait", "1s"] + (["--ca-file", ca] if ca else []) + ["list"]
    r = subprocess.run(a, env=env(**more), capture_output=True, text=True, timeout=30); return (r.stderr + r.stdout).strip().split("\n")[0][:110]
SDK = "import bellglass,sys\nfrom bellglass.patience import Patience\nP=Patience(1.0, 1.0)\ntry:\n  c=bellglass.Client(sys.argv[1], '%s', **({'ca_file':sys.argv[2]} if len(sys.argv)>2 else {}), patience=P)\n  print(c.sandboxes())\nexcept Exception as e: print(type(e).__name__, str(e)[:90])" % KEY
def sdk(url, ca=None, **more):
    py = os.environ.get("BELLGLASS_SDK_PYTHON")
    if not py: return "not tried"
    code = os.environ.get("BELLGLASS_SDK_CODE", SDK).replace("KEY", KEY)
    r = subprocess.run([py, "-c", code, url] + ([ca] if ca else []), env=env(PYTHONPATH=os.environ.get("PYTHONPATH", ""), **more), capture_output=True, text=True, timeout=20); return (r.stdout + r.stderr[-150:]).strip()[:130]
leak = lambda seen: "KEY SEEN" if any(KEY.encode() in d for d in seen) else "no key"
ca = f"{CERTS}/ca.pem"; OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n{\"items\":[]}"
for cert, c in (("good", ca), ("wrong", ca), ("expired", ca), ("client", ca), ("self", ca), ("self", None), ("good", None), ("self", f"{CERTS}/self.pem")):
    for n, f in (("cli", cli), ("sdk", sdk)):
        port, seen = serve(cert, OK); print(f"{cert:8} trusting {os.path.basename(c) if c else 'the machine':12} {n}: {leak(seen) if False else ''}{f(f'https://localhost:{port}', c)} | {leak(seen)}")
port, seen = serve(None, OK); print("https address, plain server  cli:", cli(f"https://localhost:{port}", ca), "|", leak(seen))
plain, heard = serve(None, OK); other, heard2 = serve("good", OK)
for code in (301, 302, 303, 307, 308):
    for to, hd in ((f"http://127.0.0.1:{plain}/v1/sandboxes", heard), (f"https://127.0.0.1:{other}/v1/sandboxes", heard2)):
        r = f"HTTP/1.1 {code} Moved\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n".encode(); port, seen = serve("good", r); a, b = cli(f"https://localhost:{port}", ca), sdk(f"https://localhost:{port}", ca); print(f"redirect {code} to {to[:5]}: first server {leak(seen)}, the other: {leak(hd)} ({len(hd)} requests) | cli: {a[:50]}")
# a proxy in the environment
px, pseen = serve(None, b"HTTP/1.1 502 x\r\ncontent-length: 0\r\n\r\n"); target, tseen = serve(None, OK)
for var in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
    pseen.clear(); tseen.clear(); a = cli(f"http://127.0.0.1:{target}", **{var: f"http://127.0.0.1:{px}"}); c1 = leak(pseen); pseen.clear(); b = sdk(f"http://127.0.0.1:{target}", **{var: f"http://127.0.0.1:{px}"}); print(f"{var} set, server http://127.0.0.1: proxy of the cli: {c1}, of the sdk: {leak(pseen)} | {a[:60]} | {b[:60]}")
pseen.clear(); gp, gseen = serve("good", OK); a = cli(f"https://localhost:{gp}", ca, https_proxy=f"http://127.0.0.1:{px}"); print("https_proxy set, https server: proxy sees:", leak(pseen), [d[:30] for d in pseen])
f = "/tmp/attack-keylog"; gp, gseen = serve("good", OK); cli(f"https://localhost:{gp}", ca, SSLKEYLOGFILE=f); print("SSLKEYLOGFILE obeyed by the cli:", os.path.exists(f)); sdk(f"https://localhost:{gp}", ca, SSLKEYLOGFILE=f); print("by the sdk:", os.path.exists(f)); os.path.exists(f) and os.remove(f)
gp, gseen = serve("self", OK); print("SSL_CERT_FILE in the environment, cli:", cli(f"https://localhost:{gp}", SSL_CERT_FILE=f"{CERTS}/self.pem")[:80], "|", leak(gseen)); gp, gseen = serve("self", OK); print("the same with --ca-file of another authority:", cli(f"https://localhost:{gp}", ca, SSL_CERT_FILE=f"{CERTS}/self.pem")[:80], "|", leak(gseen))
