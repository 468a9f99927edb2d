"""A port is public, a stranger opens a WebSocket-like upgrade and a download, and the port is made private again: are they cut?
And a holder of the port token: nothing can end what was opened with it but the end of the sandbox."""
from common import *
import re
src = open(os.path.join(os.path.dirname(__file__), "a05_upgrades.py")).read()
SERVER = re.search(r"r'''(.*?)'''", src, re.S).group(1)
s = sandbox()
call("PUT", f"/v1/sandboxes/{s}/files/content?path=/workspace/srv.py", raw=SERVER.encode())
call("POST", f"/v1/sandboxes/{s}/execs", {"argv": ["python3", "/workspace/srv.py"]}); time.sleep(1.5)
name = f"8000-{s}.sandbox.localhost"
print("private:", call("GET", "/", key="", host=name)[0])
print("made public:", call("PUT", f"/v1/sandboxes/{s}/ports/8000", {"public": True})[1].get("public"))
up = open_raw(f"GET / HTTP/1.1\r\nhost: {name}\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")
down = open_raw(f"GET /slow HTTP/1.1\r\nhost: {name}\r\n\r\n")
print("opened:", drain(up, 1)[0][:15], drain(down, 1)[0][:15])
print("made private:", call("PUT", f"/v1/sandboxes/{s}/ports/8000", {"public": False})[1].get("public"))
print("a fresh stranger:", call("GET", "/", key="", host=name)[0])
time.sleep(5); up.sendall(b"still here?")
print("5 s later, upgrade:", drain(up, 2), "| download:", drain(down, 2)[0][-20:])
print("what an application at a port's own address is shown of an API key beside the port token:")
token = call("GET", f"/v1/sandboxes/{s}/ports/8000")[1]["token"]
kid, key = new_key("read")
st, a, _ = call("GET", "/x", key=key, host=name, headers={"bellglass-token": token, "x-api-key": key, "x-access-token": "agent-token"})
print(st, "key seen inside:", key.encode() in (a if isinstance(a, bytes) else b""), "| token seen inside:", token.encode() in a)
# by the query: other spellings of the token's name, and the referer
for path, headers in {f"/a?bellglass%5Ftoken={token}": {"bellglass-token": token}, "/b": {"bellglass-token": token, "referer": f"http://{name}/?bellglass_token={token}"}, f"/c?x=1;bellglass_token={token}": {"bellglass-token": token}, f"/d?BELLGLASS_TOKEN={token}": {"bellglass-token": token}}.items():
    st, a, _ = call("GET", path, key="", host=name, headers=headers)
    print("  ", path[:24], st, "token seen inside:", token.encode() in (a if isinstance(a, bytes) else json.dumps(a).encode()), "in referer" if "referer" in headers else "")
st, a, _ = call("POST", f"/e?bellglass_token={token}", key="", host=name)
print("   POST with the token in the address:", st, token.encode() in (a if isinstance(a, bytes) else b""))
revoke(kid); stop(s)
