"""Shared by the payloads: a small client. BELLGLASS_URL and BELLGLASS_API_KEY (an administrator's) come from the environment."""
import http.client, json, os, socket, sys, time, urllib.parse

URL = urllib.parse.urlparse(os.environ.get("BELLGLASS_URL", "http://127.0.0.1:17471"))
ADMIN = os.environ["BELLGLASS_API_KEY"]
HOST, PORT = URL.hostname, URL.port
# Wrong keys are counted by address: each payload comes from one of its own below 127/8.
import random
SOURCE = (f"127.{random.randint(1, 250)}.{random.randint(1, 250)}.{random.randint(1, 250)}", 0) if HOST.startswith("127.") else None

def call(method, path, body=None, key=None, headers=None, raw=None, timeout=60, host=None):
    """One request: status, parsed or raw answer, headers."""
    c = http.client.HTTPConnection(HOST, PORT, timeout=timeout, source_address=SOURCE)
    h = dict(headers or {})
    if key != "":
        h.setdefault("authorization", "Bearer " + (key or ADMIN))
    if body is not None:
        raw, h["content-type"] = json.dumps(body).encode(), "application/json"
    if host:
        h["host"] = host
    c.request(method, path, raw, h)
    r = c.getresponse()
    data = r.read()
    try:
        data = json.loads(data)
    except ValueError:
        pass
    c.close()
    return r.status, data, r.headers

def new_key(role="write", project="default", **more):
    status, answer, _ = call("POST", "/v1/keys", {"project": project, "role": role, "label": "attack", **more})
    assert status == 201, (status, answer)
    return answer["key"]["id"] if "key" in answer else answer["id"], answer["secret"]

def revoke(key_id):
    return call("DELETE", "/v1/keys/" + key_id)[0]

def rotate(key_id, overlap_ms, key=None):
    return call("POST", f"/v1/keys/{key_id}/rotate", {"overlap_ms": overlap_ms}, key=key)

def sandbox(key=None, **more):
    limits = {"memory_bytes": 128 << 20}
    status, answer, _ = call("POST", "/v1/sandboxes", {"template": "base", **more}, key=key)
    assert status in (200, 201), (status, answer)
    return answer["id"]

def stop(sandbox_id):
    return call("DELETE", "/v1/sandboxes/" + sandbox_id)[0]

def project(name):
    q = dict(sandboxes=50, memory_bytes=1 << 40, disk_bytes=1 << 40, creates_per_second=1000, execs_per_second=1000)
    return call("PUT", "/v1/projects/" + name, {"quota": q})

def open_raw(text, timeout=10):
    s = socket.create_connection((HOST, PORT), timeout=timeout, source_address=SOURCE)
    s.sendall(text if isinstance(text, bytes) else text.encode())
    return s

def drain(s, seconds):
    """What arrives within so long, and whether the other side ended the connection."""
    s.settimeout(0.2)
    got, end = b"", time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            piece = s.recv(65536)
        except TimeoutError:
            continue
        except OSError:
            return got, True
        if not piece:
            return got, True
        got += piece
    return got, False
