# Stands before Podman's socket and changes the answer of /libpod/info: cgroup v2 with controllers. It lies, so that the rest can be tried here.
import os, socket, sys, threading, json
real, mine = sys.argv[1:3]
def pump(a, b):
    try:
        while d := a.recv(65536): b.sendall(d)
    except OSError: pass
    for s in (a, b):
        try: s.shutdown(socket.SHUT_RDWR)
        except OSError: pass
def serve(c):
    first = c.recv(65536, socket.MSG_PEEK)
    u = socket.socket(socket.AF_UNIX); u.connect(real)
    if b"/libpod/info" in first.split(b"\r\n")[0]:
        c.recv(65536); u.sendall(b"GET /v4.0.0/libpod/info HTTP/1.0\r\nHost: e\r\n\r\n"); d = b""
        while x := u.recv(65536): d += x
        j = json.loads(d.split(b"\r\n\r\n", 1)[1]); j["host"]["cgroupVersion"] = "v2"; j["host"]["cgroupControllers"] = ["cpu", "memory", "pids"]
        b = json.dumps(j).encode(); c.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(b) + b); c.close(); return
    line = first.split(b"\r\n")[0].split()
    if line[0] == b"GET" and line[1].endswith(b"/json") and b"/containers/bellglass-" in line[1]:
        while True:  # one question after the other on this connection
            q = c.recv(65536)
            if not q: c.close(); return
            w = q.split(b"\r\n")[0].split(); u = socket.socket(socket.AF_UNIX); u.connect(real)
            u.sendall(w[0] + b" " + w[1] + b" HTTP/1.0\r\nHost: e\r\n\r\n"); d = b""
            while x := u.recv(65536): d += x
            head, body = d.split(b"\r\n\r\n", 1); j = json.loads(body)
            if "HostConfig" in j: j["HostConfig"]["Memory"] = 1 << 27; j["HostConfig"]["PidsLimit"] = 133
            b = json.dumps(j).encode(); c.sendall(head.split(b"\r\n")[0].replace(b"1.0", b"1.1") + b"\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(b) + b); c.close(); return
    threading.Thread(target=pump, args=(u, c), daemon=True).start(); pump(c, u)
s = socket.socket(socket.AF_UNIX); s.bind(mine); s.listen(50)
while True:
    c, _ = s.accept(); threading.Thread(target=serve, args=(c,), daemon=True).start()
