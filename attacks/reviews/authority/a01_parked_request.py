"""A request whose head arrives before its key is revoked and whose body is completed afterwards: does it still act?
Three parked requests: POST /v1/keys (administrator's key), POST execs and PUT stdin (write key)."""
from common import *
s = sandbox()
admin_id, admin = new_key("admin")
write_id, write = new_key("write")
status, ex, _ = call("POST", f"/v1/sandboxes/{s}/execs", {"argv": ["sh"], "stdin": True})
print("exec with stdin:", status)

def park(method, path, body, key, kind="application/json"):
    head = f"{method} {path} HTTP/1.1\r\nhost: {HOST}:{PORT}\r\nauthorization: Bearer {key}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    sock = open_raw(head.encode() + body[:-1])
    return sock, body[-1:]

parked = {
    "POST /v1/keys": park("POST", "/v1/keys", json.dumps({"project": "default", "role": "admin", "label": "after"}).encode(), admin),
    "POST execs": park("POST", f"/v1/sandboxes/{s}/execs", json.dumps({"argv": ["sh", "-c", "echo after > /workspace/after-exec"]}).encode(), write),
    "PUT stdin": park("PUT", f"/v1/sandboxes/{s}/execs/{ex['id']}/stdin?offset=0", b"echo after > /workspace/after-stdin\n", write, "application/octet-stream"),
}
time.sleep(1)
print("revoke:", revoke(admin_id), revoke(write_id))
print("control, the same keys afresh:", call("GET", "/v1/keys", key=admin)[0], call("GET", "/v1/sandboxes", key=write)[0])
time.sleep(10)
for name, (sock, rest) in parked.items():
    sock.sendall(rest)
    got, ended = drain(sock, 2)
    print(name, "-> finished 10 s after the revocation:", got.split(b"\r\n")[0].decode(), "| body:", got.split(b"\r\n\r\n", 1)[-1][:120], "| cut:", ended)
keys = [k for k in call("GET", "/v1/keys")[1]["items"] if k["label"] == "after"]
print("keys labelled `after` that now exist:", [(k["id"], k["role"]) for k in keys])
time.sleep(1)
print("files made after the revocation:", call("GET", f"/v1/sandboxes/{s}/files/list?path=/workspace")[1])
for k in keys:
    revoke(k["id"])
stop(s)
