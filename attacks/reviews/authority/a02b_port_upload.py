"""A body that goes into a port by headers with a key, to an application that does not answer yet: does it go on after the key is revoked?"""
from common import *
s = sandbox()
SRV = b'''
import socket
l=socket.socket(); l.bind(("127.0.0.1",8000)); l.listen(5)
while True:
    c=l.accept()[0]; f=open("/workspace/got","ab",0)
    while True:
        p=c.recv(4096)
        if not p: break
        f.write(p)
'''
call("PUT", f"/v1/sandboxes/{s}/files/content?path=/workspace/srv.py", raw=SRV); call("POST", f"/v1/sandboxes/{s}/execs", {"argv": ["python3", "/workspace/srv.py"]}); time.sleep(1.5)
kid, key = new_key("write")
sock = open_raw(f"POST / HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer {key}\r\nbellglass-sandbox: {s}\r\nbellglass-port: 8000\r\ntransfer-encoding: chunked\r\n\r\n")
sock.sendall(b"7\r\nbefore\n\r\n"); time.sleep(1); print("revoke:", revoke(kid))
n = 0
for n in range(8):
    try: sock.sendall(b"6\r\nafter\n\r\n")
    except OSError as e: print("cut", n, e); break
    time.sleep(1)
got = call("GET", f"/v1/sandboxes/{s}/files/content?path=/workspace/got")[1]
print("pieces that arrived inside after the revocation:", got.count(b"after"), "of", n + 1)
stop(s)
