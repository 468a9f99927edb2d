"""DNS rebinding and strange hosts: a page of rebind.test, whose name leads to the server, is of the same origin as what the server answers there."""
import http.client
from common import *
port = urlsplit(API).port
if SCHEME == "http":
    with browser("--host-resolver-rules=MAP * 127.0.0.1") as c:
        p = c.new_page()
        a = p.goto(f"http://rebind.test:{port}/healthz"); print("rebind.test/healthz:", a.status, a.headers.get("content-type"))
        for path in ("/v1/sandboxes", "/v1/keys", "/mcp", "/sandboxes", "/templates", "/metrics", "/v1/node"):
            print("  same-origin fetch", path, p.evaluate(f"fetch('{path}').then(x=>x.status)"))
        print("  port by headers, wrong token:", p.evaluate(f"fetch('/echo',{{headers:{{'bellglass-sandbox':'{E['VICTIM_ID']}','bellglass-port':'8000','bellglass-token':'x'}}}}).then(x=>x.status)"))
        print("  port by headers, no token:", p.evaluate(f"fetch('/echo',{{headers:{{'bellglass-sandbox':'{E['VICTIM_ID']}','bellglass-port':'8000'}}}}).then(x=>x.status)"))
        public("VICTIM", 9000, True)
        print("  public port by headers, no token:", p.evaluate(f"fetch('/echo',{{headers:{{'bellglass-sandbox':'{E['VICTIM_ID']}','bellglass-port':'9000'}}}}).then(x=>x.status)"))
        public("VICTIM", 9000, False)
        host = urlsplit(origin("VICTIM")).netloc
        v = c.new_page(); v.goto(login("VICTIM"))
        dot = host.replace(":", ".:")
        d = c.new_page(); print("trailing dot, viewer has a cookie without it:", d.goto(f"http://{dot}/echo").status)
        up = c.new_page(); print("capitals in the address:", up.goto(f"http://{host.upper()}/echo").status, "(the browser writes it small)")
host = urlsplit(origin("VICTIM")).netloc; u = urlsplit(API)
import ssl
def raw(hosts, path="/echo", headers=()):
    h = http.client.HTTPSConnection(u.hostname, u.port, context=ssl._create_unverified_context()) if u.scheme == "https" else http.client.HTTPConnection(u.hostname, u.port)
    h.putrequest("GET", path, skip_host=True)
    for x in hosts: h.putheader("host", x)
    for k, x in headers: h.putheader(k, x)
    h.endheaders(); a = h.getresponse(); return a.status, a.getheader("location"), a.getheader("bellglass-error")
ck = ("cookie", "bellglass=" + E["VICTIM_TOKEN"])
for name, hosts, path, hd in [("cookie, right host", [host], "/echo", [ck]), ("cookie, origin with another scheme", [host], "/echo", [ck, ("origin", "ftp://" + host)]), ("cookie, origin empty", [host], "/echo", [ck, ("origin", "")]), ("cookie, two origins, first own", [host], "/echo", [ck, ("origin", f"{SCHEME}://{host}"), ("origin", "http://evil")]), ("cookie, two sec-fetch-site", [host], "/echo", [ck, ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")]), ("two hosts", [host, urlsplit(API).netloc], "/echo", [ck]), ("absolute address of another host", [host], f"{SCHEME}://{urlsplit(origin('EVIL')).netloc}/echo", [ck])]:
    print(f"{name:38}", raw(hosts, path, hd))
print("-- the redirection with a token")
T = "bellglass_token=" + E["VICTIM_TOKEN"]
for p in ("//evil.test/x", "/\\evil.test/x", "/%09/evil.test", "/.//evil.test", "///evil.test/%2e%2e", "/%2fevil.test", "/a?b=//evil.test", "/x?a=1;" + T, "/@evil.test", "/?bellglass%5ftoken=" + E["VICTIM_TOKEN"]):
    try: print(f"{p.replace(E['VICTIM_TOKEN'], 'TOKEN'):34}", str(raw([host], p + ("&" if "?" in p else "?") + T)).replace(E['VICTIM_TOKEN'], 'TOKEN'))
    except Exception as x: print(p, x)
