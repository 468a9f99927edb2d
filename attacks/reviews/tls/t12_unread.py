"""200 TLS connections without a key that ask for the largest open answer many times over HTTP/2 (16 streams each) and read nothing; and 200 with a head of 60 KiB
that does not end. H-41 promises at most 64 MiB for 200 connections without a key, measured without TLS. BELLGLASS_PID is the server. Needs h2."""
import h2.connection, h2.config
from common import *
PID = int(os.environ["BELLGLASS_PID"]); base = rss(PID); print("RSS before", base // 1024, "MiB")
def peak(n, make):
    ss = []; top = 0; b = time.monotonic()
    for _ in range(200):
        try: ss.append(make())
        except OSError as e: print("  ", e); break
        top = max(top, rss(PID))
    made = time.monotonic() - b
    for _ in range(20): time.sleep(.25); top = max(top, rss(PID))
    print(f"{n}: {len(ss)} connections in {made:.1f} s, peak RSS +{(top - base) / 1024:.1f} MiB; a client with a key: {api('GET', '/v1/sandboxes')[0]}"); [s.close() for s in ss]; time.sleep(3); print(f"   after they are gone: RSS +{(rss(PID) - base) / 1024:.1f} MiB")
ctx = context(["h2"])
def unread():
    raw = socket.socket(); raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096); raw.settimeout(5); raw.connect((HOST, PORT)); s = ctx.wrap_socket(raw, server_hostname="localhost")
    c = h2.connection.H2Connection(); c.initiate_connection(); c.update_settings({4: 2**31 - 1}); c.increment_flow_control_window(2**30)
    for i in range(16): c.send_headers(1 + 2 * i, [(":method", "GET"), (":path", "/openapi.json"), (":scheme", "https"), (":authority", "localhost")], end_stream=True)
    s.sendall(c.data_to_send()); return s
peak("16 answers unread on each, HTTP/2", unread)
def head(): s = tls(alpn=["http/1.1"]); s.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 60000); return s
peak("a head of 60 KiB that does not end, HTTP/1.1", head)
