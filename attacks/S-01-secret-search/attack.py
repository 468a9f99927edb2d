# Looks for a secret everywhere inside. Arguments: the value in hexadecimal digits, and `control` where it is in the variables.
import shutil, signal, subprocess, tempfile

VALUE = bytes.fromhex(sys.argv[1])
if "control" in sys.argv:
    os.environ["API_KEY"] = VALUE.decode()
TOKEN = os.environ.get("API_KEY", "none")
child = subprocess.Popen(["sleep", "60"])
named = subprocess.Popen(["python3", "-c", "import time; time.sleep(60)", TOKEN])
place = tempfile.mkdtemp(dir="/workspace" if os.path.isdir("/workspace") else None)
with open(place + "/kept", "w") as file:
    file.write(TOKEN)


def found(text):
    if VALUE not in (text if isinstance(text, bytes) else str(text).encode()):
        refused("not there")


def read(path, most=1 << 24):
    try:
        with open(path, "rb") as file:
            return file.read(most)
    except OSError:
        return b""


def pids():
    """All that there are but this one, which knows what it looks for; of the control only its own."""
    if "control" in sys.argv:
        return [child.pid, named.pid]
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()]


def processes(entry):
    return b"".join(read(f"/proc/{pid}/{entry}") for pid in pids())


def memory():
    for pid in pids():
        for line in read(f"/proc/{pid}/maps").decode("latin1").splitlines():
            span, rights = line.split(" ", 2)[:2]
            begin, end = (int(part, 16) for part in span.split("-"))
            if "rw" not in rights or end - begin > 1 << 26:
                continue
            try:
                with open(f"/proc/{pid}/mem", "rb", 0) as file:
                    file.seek(begin)
                    if VALUE in file.read(end - begin):
                        return VALUE
            except (OSError, ValueError):
                pass
    return b""


def disk():
    said = b""
    for top in (place,) if "control" in sys.argv else ("/workspace", "/home", "/tmp", "/dev/shm", "/run", "/.bellglass"):
        for where, _, files in os.walk(top):
            said += b"".join(read(os.path.join(where, name), 1 << 16) for name in files[:50])
    return said


def core():
    before = os.getcwd()
    os.chdir(place)
    dying = subprocess.Popen(["sleep", "60"])
    dying.send_signal(signal.SIGSEGV)
    dying.wait()
    said = b"".join(read(os.path.join(place, name)) for name in os.listdir(place) if name.startswith("core"))
    os.chdir(before)
    return said


def said(request):
    """All that comes back, whatever it is."""
    with dial(PROXY) as stream:
        stream.sendall(request.encode("latin1"))
        return everything(stream)


attempt("variables", lambda: found("".join(os.environ.values())))
for entry in ("environ", "cmdline", "comm", "status"):
    attempt(f"/proc/*/{entry}", lambda: found(processes(entry)))
attempt("memory", lambda: found(memory()))
attempt("disk", lambda: found(disk()))
attempt("core", lambda: found(core()))
head = f"authorization: Bearer {TOKEN}\r\nproxy-authorization: Basic x\r\n"
for thing, line in {
    "echo in the clear": "GET http://good.example/reflect/plain", "refused": "GET http://nobody.example/", "no proxy": "GET /",
    "wrong": f"GET http://{TOKEN}/", "trace": "TRACE http://good.example/reflect/plain", "tunnel": f"CONNECT {TOKEN}:443",
    "metadata": "GET http://169.254.169.254/latest", "in the clear on 443": "GET http://good.example:443/v1",
}.items():
    attempt(thing, lambda: found(said(f"{line} HTTP/1.1\r\nhost: good.example\r\n{head}\r\n")))
for one in (child, named):
    one.kill()
    one.wait()
shutil.rmtree(place)
done()
