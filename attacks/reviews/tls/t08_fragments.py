"""An unfinished ClientHello in records of 1 byte: does the cost grow faster than what is sent? One connection for each size; then 20 at once for 5 s.
Without a key, before any request. BELLGLASS_PID is the server."""
import threading
from common import *
PID = int(os.environ["BELLGLASS_PID"]); idle0 = cpu(PID); time.sleep(2); print(f"server at rest: {cpu(PID)-idle0:.2f} s of processor in 2 s")
def pieces(total, size=1):
    d = b"\x01" + (65000).to_bytes(3, "big") + b"\x03\x03" + b"\0" * total
    return b"".join(b"\x16\x03\x01" + len(d[i:i+size]).to_bytes(2, "big") + d[i:i+size] for i in range(0, total, size))
for total in (500, 2000, 8000, 16000, 32000, 60000):
    for size in (1, 100):
        data = pieces(total, size); s = tcp(timeout=20); c0, b = cpu(PID), time.monotonic()
        try: s.sendall(data)
        except OSError as e: print("  cut:", e)
        g, end = drain(s, 6); s.close(); print(f"{total:>6} bytes of a ClientHello in records of {size:>3}: {len(data):>7} bytes sent, server used {cpu(PID)-c0:.2f} s of processor, {end} {g[:8].hex()} after {time.monotonic()-b:.1f} s")
def lat():
    b = time.monotonic(); st = api("GET", "/v1/sandboxes")[0]; return st, (time.monotonic() - b) * 1000
data = pieces(60000); end = time.monotonic() + 5; n = [0]
def go():
    while time.monotonic() < end:
        try: s = tcp(); s.settimeout(5); s.sendall(data); n[0] += 1; s.settimeout(5); s.recv(10)
        except OSError: pass
quiet = sorted(lat()[1] for _ in range(9))[4]; c0, b0 = cpu(PID), time.monotonic(); ts = [threading.Thread(target=go) for _ in range(20)]; [t.start() for t in ts]; time.sleep(.3); l = []
while time.monotonic() < end:
    try: l.append(lat()[1])
    except OSError as e: l.append(99999); print("  a client with a key:", e)
[t.join() for t in ts]; took = time.monotonic() - b0; print(f"20 connections for 5 s: {n[0]} ClientHellos of {len(data)} bytes, server used {cpu(PID)-c0:.1f} s of processor in {took:.1f} s; a client with a key: quiet {quiet:.0f} ms, then median {sorted(l)[len(l)//2]:.0f} ms, worst {max(l):.0f} ms, {len(l)} answers")
time.sleep(1); print("afterwards:", lat())
