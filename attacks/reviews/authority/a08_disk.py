"""Every credential that was ever shown or handed out, searched for in every byte of the data directory, the server's log and output.
BELLGLASS_DATA is the data directory (root reads it). Prints which file has which kind, and the mode of that file."""
import hashlib, stat
from common import *
DATA = os.environ["BELLGLASS_DATA"]
project("disk")
kid, key = new_key("admin", "disk")
rot = rotate(kid, 600000)[1]["secret"]
s = call("POST", "/sandboxes", {"templateID": "base", "secure": True, "timeout": 600}, key=key)[1]; traffic0 = s.get("trafficAccessToken"); s = s["sandboxID"]
port = call("GET", f"/v1/sandboxes/{s}/ports/8000", key=key)[1]["token"]
e2b = call("GET", f"/sandboxes/{s}", key="", headers={"x-api-key": "e2b_" + key[4:]})[1]
agent = e2b.get("envdAccessToken"); traffic = e2b.get("trafficAccessToken")
if not agent: e2b = call("POST", f"/sandboxes/{s}/connect", {"timeout": 600}, key=key)[1]; agent, traffic = e2b.get("envdAccessToken"), e2b.get("trafficAccessToken")
traffic = traffic or traffic0
url = call("GET", f"/templates/attack/files/{hashlib.sha256(b'disk').hexdigest()}", key=key)[1]["url"]; ticket = url.split("ticket=")[1]
wrong = "bgk_" + hashlib.sha256(b"wrong").hexdigest()
# use them in places that log: wrong routes, wrong hosts, wrong methods, errors, traces, exec arguments refused, port errors
for k in (key, rot, wrong):
    for path in ("/v1/sandboxes", f"/v1/{k}", f"/v1/sandboxes/{k}", f"/v1/sandboxes/{s}/execs/{k}", f"/v1/sandboxes?cursor={k}", f"/x?key={k}"): call("GET", path, key=k)
    call("PUT", f"/v1/projects/{k}", {"quota": {}}, key=k); call("DELETE", f"/v1/keys/{k}", key=rot); call("POST", f"/v1/keys/{k}/rotate", {"overlap_ms": 0}, key=rot)
    call("GET", "/v1/sandboxes", key=k, headers={"traceparent": f"00-{k[4:36]}-{k[36:52]}-01", "idempotency-key": "plain", "user-agent": k})
for t in (port, agent, traffic):
    call("GET", f"/?bellglass_token={t}", key="", host=f"9999-{s}.sandbox.localhost"); call("GET", "/", key="", host=f"9999-{s}.sandbox.localhost", headers={"bellglass-token": t or ""})
    call("POST", "/process.Process/List", {}, key="", headers={"e2b-sandbox-id": s, "x-access-token": t or ""})
call("PUT", "/" + url.split("/", 3)[3].replace("bgt_", "bgt_"), raw=b"x", key="")
call("PUT", "/" + url.split("/", 3)[3], raw=b"x", key="")
call("POST", "/v1/keys", {"project": key, "role": "admin"}, key=rot)
time.sleep(7)
kinds = {"API key": key[4:], "rotated key": rot[4:], "wrong key that was shown": wrong[4:], "port token": port, "agent token": agent, "traffic token": traffic, "ticket": ticket[4:], "administrator's first key": ADMIN[4:]}
def look():
    found = {}
    skip = (os.path.join(DATA, "layers"), os.path.join(DATA, "guest"))
    for root, dirs, files in os.walk(DATA):
        if root.startswith(skip): dirs[:] = []; continue
        for f in files:
            p = os.path.join(root, f)
            try:
                if not stat.S_ISREG(os.lstat(p).st_mode): continue
                if os.path.getsize(p) > 64 << 20: continue
                data = open(p, "rb").read()
            except OSError: continue
            for n, v in kinds.items():
                if v and v.encode() in data: found.setdefault(n, []).append((os.path.relpath(p, DATA).replace(s, "SANDBOX"), oct(os.stat(p).st_mode & 0o777)))
    return found
print("none of:", [n for n, v in kinds.items() if not v])
print("while the sandbox runs:"); [print("  ", n, w) for n, w in look().items()]
print("stop:", call("DELETE", f"/v1/sandboxes/{s}", key=rot)[0]); time.sleep(8)
print("after its end:"); [print("  ", n, w) for n, w in look().items()]
for k in call("GET", "/v1/keys")[1]["items"]:
    if k["project"] == "disk": revoke(k["id"])
