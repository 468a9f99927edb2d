"""A clock that jumps, as the test of A-18 makes it: the server runs with
  LD_PRELOAD=libfaketimeMT.so.1 FAKETIME_TIMESTAMP_FILE=$BELLGLASS_OFFSET FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1
L-12: an expired key stays expired when the clock is set back. And a file signature, a ticket, and the streams of a key that expires?"""
import base64, hashlib
from common import *
OFFSET = os.environ["BELLGLASS_OFFSET"]
def jump(seconds): open(OFFSET, "w").write(f"{seconds:+d}"); time.sleep(.3)
jump(0)
sb = call("POST", "/sandboxes", {"templateID": "base", "timeout": 900, "secure": True})[1]; s, agent = sb["sandboxID"], sb["envdAccessToken"]
call("POST", "/files?path=/home/user/a", raw=b"--x\r\ncontent-disposition: form-data; name=file; filename=x\r\n\r\nfile a\r\n--x--\r\n", key="", headers={"e2b-sandbox-id": s, "x-access-token": agent, "content-type": "multipart/form-data; boundary=x"})
exp = int(time.time()) + 1800
sig = "v1_" + base64.b64encode(hashlib.sha256(f"/home/user/a:read::{agent}:{exp}".encode()).digest()).decode().rstrip("=")
q = f"/files?path=/home/user/a&signature={sig.replace('+','%2B').replace('/','%2F')}&signature_expiration={exp}"
kid, key = new_key("admin", valid_ms=1_800_000)
tick = lambda n: call("GET", f"/templates/attack/files/{hashlib.sha256(n.encode()).hexdigest()}")[1]["url"].split("/", 3)[3]
t1, t2 = tick("c1"), tick("c2")
ev = open_raw(f"GET /v1/events HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer {key}\r\n\r\n"); drain(ev, 1)
look = lambda: f"signature {call('GET', q, key='')[0]}, key {call('GET', '/v1/sandboxes', key=key)[0]}"
print("at first:", look())
jump(7200); print("two hours ahead:", look(), "| ticket", call("PUT", "/" + t1, raw=b"x", key="")[0], "| stream opened before with the key:", "ENDED" if drain(ev, 3)[1] else "OPEN")
jump(0); print("set back:", look(), "| ticket of an hour, two hours later by the latest time:", call("PUT", "/" + t2, raw=b"x", key="")[0])
kid3, key3 = new_key("read", valid_ms=5000)
st = open_raw(f"GET /v1/events HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer {key3}\r\n\r\n"); drain(st, 1); time.sleep(6)
print("a key valid for 5 s, made after the clock was set back, 7 s later: key", call("GET", "/v1/sandboxes", key=key3)[0], "| its stream:", "ENDED" if drain(st, 2)[1] else "OPEN")
time.sleep(15); print("22 s later: its stream:", "ENDED" if drain(st, 2)[1] else "OPEN")
stop(s); revoke(kid); revoke(kid3)
