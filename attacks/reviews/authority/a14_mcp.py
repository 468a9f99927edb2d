"""MCP: a session is named by an id; is it bound to the key that opened it? Another key of the project, another project, the rotated key,
a revoked key; and what a call does whose key is revoked while it runs."""
from common import *
project("mcpother"); kid, key = new_key("write"); sid_, same = new_key("write"); oid, other = new_key("write", "mcpother"); rid, read = new_key("read")
def mcp(body, key, session=None, method="POST", timeout=30):
    h = {"accept": "application/json, text/event-stream"}
    if session: h["mcp-session-id"] = session
    return call(method, "/mcp", body, key=key, headers=h, timeout=timeout)
init = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}}
st, a, h = mcp(init, key); sess = h["mcp-session-id"]; print("initialize:", st, "session:", bool(sess), "length", len(sess))
mcp({"jsonrpc": "2.0", "method": "notifications/initialized"}, key, sess)
tl = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
print("read key opens a session:", mcp(init, read)[0])
for n, k in {"own": key, "same project": same, "another project": other, "read": read, "admin": None}.items(): print("tools/list with", n, mcp(tl, k, sess)[0])
print("another key ends it:", mcp(None, same, sess, "DELETE")[0], "| another project:", mcp(None, other, sess, "DELETE")[0], "| still there:", mcp(tl, key, sess)[0])
new = rotate(kid, 600000)[1]["secret"]
print("rotated key takes the session over:", mcp(tl, new, sess)[0], "| old key in the overlap:", mcp(tl, key, sess)[0])
st, a, _ = mcp({"jsonrpc": "2.0", "id": 3, "method": "tools/list"}, key, sess); names = __import__("re").findall(r"\"name\":\"(\w+)\",\"(?:title|description)", str(a))
print("tools:", names)
# a call that runs while the key is revoked
body = json.dumps({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": names[0] if names else "x", "arguments": {"code": "import time,os\nfor i in range(20):\n    open('/workspace/tick','a').write(str(time.time())+'\\n'); time.sleep(1)\n"}}})
sock = open_raw(f"POST /mcp HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer {key}\r\nmcp-session-id: {sess}\r\naccept: application/json, text/event-stream\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}")
got, _ = drain(sock, 6); print("call began:", got.split(b"\r\n")[0], got[-80:])
print("revoke:", revoke(kid)); got, ended = drain(sock, 3); print("stream of the call:", "ENDED" if ended else "OPEN")
print("session with the revoked key:", mcp(tl, key, sess)[0], "| with the new key:", mcp(tl, new, sess)[0])
sb = [x for x in call("GET", "/v1/sandboxes")[1]["items"]]
for x in sb:
    e = call("GET", f"/v1/sandboxes/{x['id']}/execs")[1]["items"]; print("sandbox", x["labels"], "execs running:", sum(1 for i in e if i["outcome"] is None))
time.sleep(3)
for x in sb: stop(x["id"])
for k in call("GET", "/v1/keys")[1]["items"]:
    if k["label"] == "attack": revoke(k["id"])
