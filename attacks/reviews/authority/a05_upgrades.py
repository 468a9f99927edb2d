"""Connections that became something else, opened with a key that is then revoked, or rotated with overlap 0:
a terminal (WebSocket), a tunnel to a port, an upgrade passed on into a port by headers, a download by headers that never ends."""
import base64
from common import *
s = sandbox()
SERVER = r'''
import socket,threading,time
l=socket.socket(); l.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); l.bind(("127.0.0.1",8000)); l.listen(50)
def serve(c):
    d=b""
    while b"\r\n\r\n" not in d: d+=c.recv(4096)
    if b"upgrade: echo" in d.lower():
        c.sendall(b"HTTP/1.1 101 x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")
        while True:
            p=c.recv(4096)
            if not p: return
            c.sendall(b"E:"+p)
    if b"GET /slow" in d:
        c.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True: c.sendall(b"5\r\ntick\n\r\n"); time.sleep(.5)
    c.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"%len(d)+d); c.close()
while True: threading.Thread(target=serve,args=(l.accept()[0],),daemon=True).start()
'''
call("PUT", f"/v1/sandboxes/{s}/files/content?path=/workspace/srv.py", raw=SERVER.encode())
call("POST", f"/v1/sandboxes/{s}/execs", {"argv": ["python3", "/workspace/srv.py"]})
time.sleep(1.5)
def opened(key):
    auth = f"host: {HOST}\r\nauthorization: Bearer {key}\r\n"
    term = call("POST", f"/v1/sandboxes/{s}/execs", {"argv": ["cat"], "terminal": {"cols": 80, "rows": 24}}, key=key)[1]
    ws = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: " + base64.b64encode(os.urandom(16)).decode() + "\r\n"
    to = f"bellglass-sandbox: {s}\r\nbellglass-port: 8000\r\n"
    all_ = {}
    if "id" in term: all_["terminal"] = open_raw(f"GET /v1/sandboxes/{s}/execs/{term['id']}/terminal HTTP/1.1\r\n{auth}{ws}\r\n")
    else: print("no terminal:", term)
    all_["tunnel"] = open_raw(f"GET /v1/sandboxes/{s}/ports/8000/tunnel HTTP/1.1\r\n{auth}connection: upgrade\r\nupgrade: bellglass-tcp\r\n\r\n")
    all_["port upgrade"] = open_raw(f"GET / HTTP/1.1\r\n{auth}{to}connection: upgrade\r\nupgrade: echo\r\n\r\n")
    all_["port download"] = open_raw(f"GET /slow HTTP/1.1\r\n{auth}{to}\r\n")
    time.sleep(1)
    for n, sock in all_.items(): print("   ", n, drain(sock, .4)[0][:40])
    return all_
for how in ("revoke", "rotate 0"):
    kid, key = new_key("write"); all_ = opened(key)
    print(how, revoke(kid) if how == "revoke" else rotate(kid, 0)[0]); time.sleep(3)
    for n, sock in all_.items():
        got, ended = drain(sock, .5)
        if not ended:
            try: sock.sendall(b"hello"); got2, ended = drain(sock, 1.5); got += got2
            except OSError: ended = True
        print("  after", how, n, "ENDED" if ended else "OPEN", got[-40:])
stop(s)
