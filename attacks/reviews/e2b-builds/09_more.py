"""An archive changed between hash and use; cache keys and policies of projects; a log filled so that later lines of the build are lost."""
from common import *
import threading, re
def cli(*a): o = subprocess.run([os.environ["BELLGLASS"], *a], env={**os.environ, "BELLGLASS_SERVER": URL, "BELLGLASS_API_KEY": KEY}, capture_output=True, text=True); return o.stdout + o.stderr
def newkey(p, *more): cli("project", "set", p, *more); return re.search(r"[0-9a-f]{64}", cli("key", "create", "--project", p, "--role", "admin"))[0]
# 1. The archive is replaced again and again while the build reads it.
name = "e" * 64; blob = os.urandom(24 << 20)
def version(n): return tar([("d", "dir", 0), ("d/a", "file", b"%d\n" % n), ("d/blob", "file", blob), ("d/z", "file", b"%d\n" % n)], gz=False)
upload(name, version(0)); stop = []; sent = []
def flip():
    n = 1
    while not stop: sent.append(upload(name, version(n))[0]); n += 1
for i in range(3):
    stop.clear(); t = threading.Thread(target=flip); t.start()
    s = build("race", [COPY(name, "d", f"/home/user/d{i}")]); stop.append(1); t.join()
    print("replaced while it is built:", said(s, 1)[:170], run("race", f"cat /home/user/d{i}/a /home/user/d{i}/z")[0].replace("\n", " ") if s["status"] == "ready" else "", "| uploads meanwhile", len(sent))
# 2. A step of a project that may reach everything, and the same step of one that may not.
a, b = newkey("opened", "--open", "true"), newkey("closed", "--open", "false")
step = [RUN("echo reach > /home/user/n; curl -s -m 8 -o /dev/null -w '%{http_code}' http://example.com/; true")]
for who, k in (("open project", a), ("closed project", b), ("closed again", b)):
    s, r = request("cachekey", k); begin("cachekey", r["buildID"], step, k); print(f"{who:15}", said(wait("cachekey", r["buildID"], 60, k), 2))
# 3. Project's quota and bytes of archives; a write key of the project is refused more than its disk.
k = newkey("tiny", "--disk", "100M", "--sandboxes", "1") ; raw = os.urandom(64 << 20)
codes = []
for i in range(4):
    u = ask("GET", f"/templates/x/files/{hashlib.sha256(b'tiny%d' % i).hexdigest()}", key=k)[1]["url"]; codes.append(ask("PUT", u, raw=raw, key=None)[0])
print("project with a disk quota of 100 MB keeps archives of 256 MiB:", codes)
s, r = request("tiny", k); begin("tiny", r["buildID"], [RUN("head -c 300000000 /dev/urandom > /home/user/b")], k); print("and builds a layer of 300 MB:", said(wait("tiny", r["buildID"], 90, k), 1)[:90])
# 4. The log is full before the last steps.
noise = "yes 0123456789012345678901234567890123456789 | head -c 60000000"
s = build("fulllog", [RUN(noise + f" # {i}") for i in range(8)] + [RUN("echo hidden")], 200)
p = subprocess.run([os.environ["BELLGLASS"], "--data", os.environ["BELLGLASS_DATA"], "template", "log", "fulllog"], capture_output=True, text=True).stdout
print("log of", s["status"], "build with 9 steps:", len(p) >> 20, "MiB; lines of the build in it:", [l[:24] for l in p.splitlines() if l.startswith("#")][-4:], "| tail:", repr(p[-60:]))
