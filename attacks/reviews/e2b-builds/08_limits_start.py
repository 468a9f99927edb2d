"""Limits of templates, start and ready commands, one build at a time, what is counted."""
from common import *
for lim in ({"cpuCount": 0}, {"memoryMB": 0}, {"memoryMB": 1}, {"memoryMB": 2**53}, {"memoryMB": 18446744073709551615}, {"cpuCount": 10**12}, {"minFreeDiskMB": 2**50}, {"memoryMB": -1}, {"cpuCount": 1.5}):
    s = build("lim", [RUN("true")], **lim); out = run("lim", "echo ok") if s["status"] == "ready" else ""
    print(f"{lim} {said(s, 1)[:150]} -> {str(out)[:230]}")
def create(t, timeout=100):
    t0 = time.time(); s, a = ask("POST", "/sandboxes", {"templateID": t, "timeout": 60}, timeout=timeout); return f"{s} after {time.time()-t0:.0f} s {str(a)[:160]}", a
for label, more in (("ready never", {"startCmd": "sleep 1", "readyCmd": "false"}), ("ready hangs", {"readyCmd": "sleep 1000"}), ("start floods", {"startCmd": "yes", "readyCmd": "true"}), ("start ends at once", {"startCmd": "exit 3", "readyCmd": "true"}), ("start of 200 KB", {"startCmd": ":" * 200000})):
    s = build("start", [RUN("true")], **more); print(f"{label:20} build {s['status']} {s.get('logs', [''])[-1][:120] if s['status'] != 'ready' else ''}", end=" ")
    if s["status"] == "ready":
        told, a = create("start"); print("create", told)
        if isinstance(a, dict) and a.get("sandboxID"): ask("DELETE", f"/sandboxes/{a['sandboxID']}")
    else: print()
print("sandboxes left:", len(ask("GET", "/sandboxes")[1]))
# one build at a time: one that sleeps holds up all others; is there a way to end it?
s, a = request("holds"); begin("holds", a["buildID"], [RUN("sleep 45")]); time.sleep(2)
s, b = request("waits"); begin("waits", b["buildID"], [RUN("true")]); time.sleep(10)
print("another build after 10 s:", ask("GET", f"/templates/waits/builds/{b['buildID']}/status")[1]["status"], "| DELETE of the build:", ask("DELETE", f"/templates/holds/builds/{a['buildID']}")[0], ask("POST", f"/templates/holds/builds/{a['buildID']}/cancel")[0], ask("DELETE", "/templates/holds")[0])
codes = [begin("waits", request("waits")[1]["buildID"], [RUN("true")])[0] for _ in range(20)]; print("20 more begun:", {c: codes.count(c) for c in codes})
print("the first now:", wait("holds", a["buildID"], 90)["status"], "the second:", wait("waits", b["buildID"], 60)["status"])
ids = [request("flood")[1]["buildID"] for _ in range(70)]; print("70 asked for, the first can be begun:", begin("flood", ids[0], [RUN("true")])[0], "the last:", begin("flood", ids[-1], [RUN("true")])[0])
raw = os.urandom(32 << 20); t0 = time.time()
print("8 archives of 32 MiB:", [upload(hashlib.sha256(bytes([i])).hexdigest(), raw)[0] for i in range(8)], "bytes in `sent`:", sum(os.path.getsize(os.path.join(os.environ["BELLGLASS_DATA"], "sent", x)) for x in os.listdir(os.environ["BELLGLASS_DATA"] + "/sent")) >> 20, "MiB")
