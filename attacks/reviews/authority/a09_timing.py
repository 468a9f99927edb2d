"""Does the time of a refusal tell an unknown key from a revoked, an expired, or a malformed one, or one whose first digits are right? 1,500 samples of each,
interleaved at random, medians and a rank test. Comes from many addresses of 127/8, because wrong keys are counted."""
import random, statistics as st, math
from common import *
rk, rev = new_key("write"); call("GET", "/v1/sandboxes", key=rev); revoke(rk)
ek, exp = new_key("write", valid_ms=300); call("GET", "/v1/sandboxes", key=exp); time.sleep(.5)
vk, val = new_key("write"); hexs = lambda: "".join(random.choice("0123456789abcdef") for _ in range(64))
kinds = {"unknown": lambda: "bgk_" + hexs(), "revoked": lambda: rev, "expired": lambda: exp, "malformed": lambda: "bgk_" + hexs()[:-1] + "g", "valid but last digit": lambda: val[:-1] + ("0" if val[-1] != "0" else "1")}
N = int(os.environ.get("SAMPLES", "1500")); t = {k: [] for k in kinds}; order = [k for k in kinds for _ in range(N)]; random.shuffle(order)
import http.client
conn = None
for n, k in enumerate(order):
    if n % 25 == 0:
        if conn: conn.close()
        conn = http.client.HTTPConnection(HOST, PORT, timeout=5, source_address=(f"127.{random.randint(1,250)}.{random.randint(1,250)}.{random.randint(1,250)}", 0)); conn.connect()
    h = {"authorization": "Bearer " + kinds[k]()}; a = time.perf_counter_ns(); conn.request("GET", "/v1/sandboxes", headers=h); r = conn.getresponse(); r.read(); b = time.perf_counter_ns()
    assert r.status == 401, r.status
    if n % 25: t[k].append((b - a) / 1000)
def rank(a, b):
    c = sorted([(v, 0) for v in a] + [(v, 1) for v in b]); R = sum(i + 1 for i, (v, g) in enumerate(c) if g == 0); n, m = len(a), len(b); U = R - n * (n + 1) / 2
    return (U - n * m / 2) / math.sqrt(n * m * (n + m + 1) / 12)
for k, v in t.items(): print(f"{k:22} n={len(v)} median {st.median(v):7.1f} us  quartiles {[round(x,1) for x in st.quantiles(v)]}  z against unknown {rank(v, t['unknown']):+.2f}")
revoke(vk)
