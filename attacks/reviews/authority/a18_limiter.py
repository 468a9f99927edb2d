"""30 wrong keys a minute and address: one client that has a whole network of addresses (here 127/8; elsewhere an IPv6 /64), for 4 s. How many are looked up,
and how much does the audit log grow by a stranger? Also: wrong port tokens, and who is counted for whom. BELLGLASS_DATA is the data directory."""
import random, socket
from common import *
log = os.path.join(os.environ["BELLGLASS_DATA"], "audit.log"); size = os.path.getsize(log)
def burst(n, address=None):
    src = address or f"127.{random.randint(1,250)}.{random.randint(1,250)}.{random.randint(1,250)}"
    s = socket.create_connection((HOST, PORT), source_address=(src, 0), timeout=5); out = []
    for _ in range(n):
        s.sendall(f"GET /v1/sandboxes HTTP/1.1\r\nhost: x\r\nauthorization: Bearer bgk_{random.getrandbits(256):064x}\r\n\r\n".encode()); out.append(s.recv(4096)[9:12])
    s.close(); return out
one = burst(60, "127.9.9.9"); print("60 from one address:", {k.decode(): one.count(k) for k in set(one)})
begun = time.monotonic(); n = 0; ok = 0
while time.monotonic() - begun < 4: r = burst(29); n += 29; ok += r.count(b"401")
time.sleep(1); grown = os.path.getsize(log) - size
print(f"from many addresses, 4 s, one thread: {n} tried, {ok} looked up; audit log grew {grown} bytes, {grown / 4 * 3600 / 2**20:.0f} MiB an hour; lines: {open(log).read().count('authenticate_failed')}")
s = sandbox(); st = [call("GET", "/", key="", host=f"8000-{s}.sandbox.localhost", headers={"bellglass-token": f"{random.getrandbits(256):064x}"})[0] for _ in range(60)]
print("60 wrong port tokens from one address:", {k: st.count(k) for k in set(st)}, "| lines about them:", open(log).read()[size:].count(s) - 1)
stop(s)
