"""The server is killed in the middle of a build; what is left, and what the next server does. SERVE is the command line that starts it, PIDFILE its process."""
from common import *
import signal, shlex
D = os.environ["BELLGLASS_DATA"]
def left():
    mounts = [l.split()[1] for l in open("/proc/mounts") if D in l]
    procs = [p for p in os.listdir("/proc") if p.isdigit() and D.encode() in (open(f"/proc/{p}/cmdline", "rb").read() if os.path.exists(f"/proc/{p}/cmdline") else b"")]
    making = [x for x in os.listdir(D + "/layers") if x.startswith("making")] 
    return {"mounts": len(mounts), "processes": len(procs), "making": len(making), "sandboxes": len(os.listdir(D + "/sandboxes")), "loops": sum(D in l for l in subprocess.run(["losetup", "-a"], capture_output=True, text=True).stdout.splitlines()), "sent": sorted(os.listdir(D + "/sent"))[-3:] and len(os.listdir(D + "/sent")), "builds.part": sum(x.endswith(".part") for x in os.listdir(D + "/builds"))}
def start(): 
    p = subprocess.Popen(shlex.split(os.environ["SERVE"]), stdout=open(D + ".log", "a"), stderr=subprocess.STDOUT, start_new_session=True)
    open(os.environ["PIDFILE"], "w").write(str(p.pid))
    for _ in range(60):
        if ask("GET", "/healthz", key=None)[0] == 200: break
        time.sleep(.5)
def kill(): os.kill(int(open(os.environ["PIDFILE"]).read()), signal.SIGKILL); time.sleep(1)
print("before              ", left())
s, b = request("killed"); begin("killed", b["buildID"], [RUN("echo one > /home/user/one"), RUN("head -c 300000000 /dev/urandom > /home/user/big; sleep 600"), RUN("true")])
time.sleep(8); print("while building      ", left()); kill(); print("server killed       ", left())
# an upload that is cut by the kill
start(); time.sleep(2); print("next server         ", left()); print("the build now       ", ask("GET", f"/templates/killed/builds/{b['buildID']}/status")[0], "the template", ask("GET", "/templates/aliases/killed")[0])
time.sleep(8); print("10 s later          ", left())
import http.client, urllib.parse
u = urllib.parse.urlsplit(ask("GET", f"/templates/x/files/{'d'*64}")[1]["url"]); h = http.client.HTTPConnection(u.hostname, u.port); h.putrequest("PUT", u.path + "?" + u.query); h.putheader("content-length", str(1 << 30)); h.endheaders(); h.send(b"x" * (8 << 20)); time.sleep(1)
print("upload half way     ", left()); kill(); start(); time.sleep(3); print("killed, next server ", left(), "present:", ask("GET", f"/templates/x/files/{'d'*64}")[1].get("present"))
s = build("killed", [RUN("echo one > /home/user/one"), RUN("true")]); print("built again         ", said(s)); print("after               ", left())
