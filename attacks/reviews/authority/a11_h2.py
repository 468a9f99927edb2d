"""One HTTP/2 connection, several credentials: each request must be judged by its own, and revoking one key must cut its streams only.
Needs the module h2."""
import socket, h2.config, h2.connection, h2.events
from common import *
rid, read = new_key("read"); wid, write = new_key("write"); oid, other = new_key("admin")
project("h2other"); pid, foreign = new_key("write", "h2other")
s = sandbox()
sock = socket.create_connection((HOST, PORT), source_address=SOURCE); c = h2.connection.H2Connection(h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)); c.initiate_connection(); sock.sendall(c.data_to_send())
state = {}
def ask(method, path, *extra):
    i = c.get_next_available_stream_id(); c.send_headers(i, [(":method", method), (":path", path), (":scheme", "http"), (":authority", f"{HOST}:{PORT}"), *extra], end_stream=True)
    state[i] = {"status": None, "data": b"", "end": None}; return i
def pump(seconds):
    sock.sendall(c.data_to_send()); sock.settimeout(.2); end = time.monotonic() + seconds
    while time.monotonic() < end:
        try: d = sock.recv(65536)
        except TimeoutError: continue
        if not d: print("connection ended"); return
        for e in c.receive_data(d):
            if isinstance(e, h2.events.ResponseReceived): state[e.stream_id]["status"] = dict(e.headers)[b":status"].decode()
            if isinstance(e, h2.events.DataReceived): state[e.stream_id]["data"] += e.data; c.acknowledge_received_data(e.flow_controlled_length, e.stream_id)
            if isinstance(e, h2.events.StreamEnded): state[e.stream_id]["end"] = "ended"
            if isinstance(e, h2.events.StreamReset): state[e.stream_id]["end"] = f"reset {e.error_code}"
        sock.sendall(c.data_to_send())
b = lambda k: ("authorization", f"Bearer {k}")
asks = {
 "admin lists keys": ask("GET", "/v1/keys", b(other)), "no key, after admin": ask("GET", "/v1/keys"), "read lists keys": ask("GET", "/v1/keys", b(read)),
 "foreign looks at sandbox": ask("GET", f"/v1/sandboxes/{s}", b(foreign)), "own looks": ask("GET", f"/v1/sandboxes/{s}", b(read)),
 "read deletes": ask("DELETE", f"/v1/sandboxes/{s}", b(read)), "foreign deletes": ask("DELETE", f"/v1/sandboxes/{s}", b(foreign)),
 "two authorization": ask("GET", "/v1/sandboxes", b(write), b(write)), "write then x-api-key": ask("GET", "/v1/sandboxes", b(read), ("x-api-key", write)),
 "never-indexed duplicate host": ask("GET", "/v1/sandboxes", b(write), ("host", "8000-x.sandbox.localhost")),
}
pump(1.5)
for n, i in asks.items(): print(f"{n:30} {state[i]['status']} {state[i]['data'][:60]}")
ev = {n: ask("GET", "/v1/events", b(k)) for n, k in {"read": read, "write": write, "foreign": foreign}.items()}
pump(1); print("revoke write:", revoke(wid)); pump(2)
for n, i in ev.items(): print("events of", n, state[i]["status"], state[i]["end"])
i = ask("GET", "/v1/sandboxes", b(write)); j = ask("GET", "/v1/sandboxes", b(read)); pump(1); print("on the same connection afterwards: revoked", state[i]["status"], "| read", state[j]["status"])
for k in (rid, oid, pid): revoke(k)
stop(s)
