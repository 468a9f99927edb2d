"""kill -9 of the server in the middle of rotations and revocations; START starts it again. What was answered must hold; a rotation is whole or not at all.
BELLGLASS_PID_FILE names a file with the server's process id, BELLGLASS_START a program that starts it again."""
import signal, subprocess, threading
from common import *
pidf, start = os.environ["BELLGLASS_PID_FILE"], os.environ["BELLGLASS_START"]
bad = {"revoked key lives": 0, "answered new key dead": 0, "old key lives after rotate(0) was answered": 0, "rotated old key dead in its overlap": 0}; rounds = 6; seen = {"rotated": 0, "revoked": 0}
for r in range(rounds):
    keys = [new_key("write") for _ in range(12)]; out = {}
    def work(n):
        kid, key = keys[n]
        try:
            if n % 3 == 0: out[n] = ("revoke", revoke(kid), None)
            elif n % 3 == 1: st, a, _ = rotate(kid, 0); out[n] = ("rotate0", st, a.get("secret"))
            else: st, a, _ = rotate(kid, 600000); out[n] = ("rotate", st, a.get("secret"))
        except OSError: pass
    ts = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    [t.start() for t in ts]; time.sleep(.01 + .015 * r); os.kill(int(open(pidf).read()), signal.SIGKILL); [t.join() for t in ts]
    time.sleep(.5); subprocess.run([start], check=True, stdout=subprocess.DEVNULL)
    ok = lambda k: call("GET", "/v1/sandboxes", key=k)[0] == 200
    for n, (what, st, secret) in out.items():
        key = keys[n][1]
        if what == "revoke" and st == 204: seen["revoked"] += 1; bad["revoked key lives"] += ok(key)
        if what.startswith("rotate") and st == 201:
            seen["rotated"] += 1; bad["answered new key dead"] += not ok(secret)
            if what == "rotate0": bad["old key lives after rotate(0) was answered"] += ok(key)
            else: bad["rotated old key dead in its overlap"] += not ok(key)
    for k in call("GET", "/v1/keys")[1]["items"]:
        if k["label"] == "attack": revoke(k["id"])
print(rounds, "kills; answered:", seen, "| violations:", bad)
