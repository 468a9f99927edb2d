"""A file upload that is under way when its key is revoked: does it go on, and is the file written?"""
from common import *
s = sandbox()
key_id, key = new_key("write")
sock = open_raw(f"PUT /v1/sandboxes/{s}/files/content?path=/workspace/up HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer {key}\r\ntransfer-encoding: chunked\r\n\r\n")
piece = b"8\r\nbefore..\r\n"
sock.sendall(piece)
time.sleep(1)
print("revoke:", revoke(key_id), "| control:", call("GET", "/v1/sandboxes", key=key)[0])
broke = None
for n in range(12):
    try:
        sock.sendall(b"8\r\nafter..\n\r\n")
    except OSError as e:
        broke = (n, e); break
    time.sleep(1)
print("sending for 12 s after the revocation:", "went on" if broke is None else f"cut at second {broke}")
if broke is None:
    sock.sendall(b"0\r\n\r\n")
    print("answer:", drain(sock, 2))
print("file:", call("GET", f"/v1/sandboxes/{s}/files/content?path=/workspace/up")[:2])
# the same for an archive
key_id, key = new_key("write")
sock = open_raw(f"PUT /v1/datasets/parked HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer {key}\r\ntransfer-encoding: chunked\r\n\r\n" )
sock.sendall(piece); time.sleep(1)
print("dataset: revoke:", revoke(key_id)); time.sleep(3)
try:
    sock.sendall(b"8\r\nafter..\n\r\n0\r\n\r\n"); print("dataset answer:", drain(sock, 2)[0][:200])
except OSError as e: print("dataset cut", e)
print("datasets:", call("GET", "/v1/datasets")[1])
call("DELETE", "/v1/datasets/parked")
stop(s)
