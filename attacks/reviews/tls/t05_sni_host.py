"""SNI against Host: which one routes? Names of ports with wildcards, other names, no name, odd names; a token of one sandbox at another's host
on one connection; what X-Forwarded-* is believed; the cookie; HSTS."""
from common import *
st, sb, _ = api("POST", "/v1/sandboxes", {"template": "base"}); s = sb["id"]; s2 = api("POST", "/v1/sandboxes", {"template": "base"})[1]["id"]
SRV = "import http.server\nclass H(http.server.BaseHTTPRequestHandler):\n  def do_GET(s):\n    b=str(s.headers).encode(); s.send_response(200); s.send_header('content-length',str(len(b))); s.end_headers(); s.wfile.write(b)\nhttp.server.HTTPServer(('127.0.0.1',8000),H).serve_forever()"
for x in (s, s2): api("POST", f"/v1/sandboxes/{x}/execs", {"argv": ["python3", "-c", SRV]})
time.sleep(2)
port = api("GET", f"/v1/sandboxes/{s}/ports/8000")[1]; t = port["token"]; t2 = api("GET", f"/v1/sandboxes/{s2}/ports/8000")[1]["token"]; name, name2 = f"8000-{s}.sandbox.localhost", f"8000-{s2}.sandbox.localhost"
print("address shown:", port["url"].replace(s, "SANDBOX")); show = lambda n, g: print(f"  {n:56} {g.split(chr(13).encode())[0].decode()[9:]} {g.split(bytes([13,10,13,10]),1)[-1][:60] if b'200' in g[:15] or b'400' in g[:15] else ''}")
tok = ("bellglass-token", t)
show("SNI port, Host port, token", ask("/", name=name, headers=[tok])); show("SNI port, Host port, none", ask("/", name=name)); show("SNI port, Host API, key", ask("/v1/keys", name=name, host="localhost", headers=[("authorization", "Bearer " + ADMIN)])[:40])
show("SNI API, Host port, token", ask("/", host=name, headers=[tok])); show("SNI sandbox 1, Host sandbox 2, token of 1", ask("/", name=name, host=name2, headers=[tok])); show("SNI sandbox 1, Host sandbox 2, token of 2", ask("/", name=name, host=name2, headers=[("bellglass-token", t2)]))
show("SNI port, path of the API, key", ask("/v1/keys", name=name, headers=[("authorization", "Bearer " + ADMIN)]))
show("absolute form names the API, Host the port", ask(f"http://localhost/v1/keys", name=name, headers=[("authorization", "Bearer " + ADMIN)])); show("https absolute form", ask(f"https://{name}/", name=name, headers=[tok]))
for n in ("evil.example", "127.0.0.1", "a" * 63 + ".sandbox.localhost", "xn--80ak6aa92e.sandbox.localhost", "LOCALHOST", "localhost."):
    try: show(f"SNI {n[:30]}", ask(s=tls(n, check=False)))
    except (OSError, ValueError) as e: print(f"  SNI {n[:30]:52} {str(e)[:60]}")
g = ask(f"/x?bellglass_token={t}", name=name); print("cookie:", [l for l in g.decode().split("\r\n") if l.lower().startswith(("set-cookie", "location", "strict-transport"))][0:3].__repr__().replace(t, "TOKEN"))
for c in (f"__Host-bellglass={t}", f"bellglass={t}", f"__host-bellglass={t}"): show(f"TLS, cookie {c[:15]}", ask("/", name=name, headers=[("cookie", c)])[:40])
fw = [("x-forwarded-proto", "http"), ("x-forwarded-host", "evil.example"), ("x-forwarded-for", "9.9.9.9"), ("forwarded", "for=9.9.9.9;proto=http;host=evil"), ("x-real-ip", "9.9.9.9"), ("x-forwarded-port", "1"), ("x-original-url", "/v1/keys"), ("x-forwarded-prefix", "/a")]
print("what the application sees:", ask("/", name=name, headers=[tok, *fw]).split(b"\r\n\r\n", 1)[-1])
g = ask(f"/x?bellglass_token={t}", name=name, headers=fw); print("cookie with X-Forwarded-Proto http: Secure" if b"Secure" in g else "NOT Secure")
print("port address with X-Forwarded-Host:", api("GET", f"/v1/sandboxes/{s}/ports/8000", headers=fw)[1]["url"].replace(s, "SANDBOX")); print("ticket address:", api("GET", "/templates/attack/files/" + "a" * 64, headers=fw)[1]["url"][:60])
hs = [p for p in ("/healthz", "/openapi.json", "/v1/sandboxes") if b"strict-transport" in ask(p).lower()]; print("HSTS on:", hs or "no answer")
for x in (s, s2): api("DELETE", "/v1/sandboxes/" + x)
