"""Tickets: used after the key that asked for them was revoked or has expired; used twice at once; for another archive; odd forms."""
import hashlib, threading
from common import *
def ticket(key, archive):
    st, a, _ = call("GET", f"/templates/attack/files/{archive}", key=key)
    assert st == 201, (st, a)
    return a["url"].split("/", 3)[3]
def put(path, data=b"archive", **kw):
    return call("PUT", "/" + path, raw=data, key="", **kw)[:2]
h = lambda x: hashlib.sha256(x.encode()).hexdigest()
kid, key = new_key("admin")
a = ticket(key, h("a")); print("control, key valid:", put(a)); print("again:", put(a))
a = ticket(key, h("b")); print("revoke:", revoke(kid)); print("key itself:", call("GET", "/v1/keys", key=key)[0]); time.sleep(1)
print("ticket of a revoked key:", put(a))
kid, key = new_key("admin", valid_ms=1500); a = ticket(key, h("c")); time.sleep(2.5)
print("key expired:", call("GET", "/v1/keys", key=key)[0], "ticket of an expired key:", put(a))
kid, key = new_key("admin"); a = ticket(key, h("d")); rotate(kid, 0); time.sleep(.5)
print("ticket of a rotated key (overlap 0):", put(a))
kid, key = new_key("admin"); a = ticket(key, h("e"))
got = []
ts = [threading.Thread(target=lambda: got.append(put(a)[0])) for _ in range(40)]
[t.start() for t in ts]; [t.join() for t in ts]
print("one ticket, 40 uploads at once:", {s: got.count(s) for s in set(got)})
a = ticket(key, h("f")); t = a.split("ticket=")[1]
for name, path in {"upper case": a.replace(t, t.upper()), "padded": a + "%20", "twice": a + "&ticket=" + t, "other archive": a.replace(h("f"), h("g"))}.items():
    print(" ", name, put(path))
print("present on the server now:", {n: call("GET", f"/templates/attack/files/{h(n)}")[1]["present"] for n in "abcdefg"})
revoke(kid)
