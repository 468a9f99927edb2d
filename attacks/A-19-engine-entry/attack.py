"""Speaks for the node, for process 1, and acts on whoever the engine brought in. See README.md."""
import os
import signal
import socket
import sys
import threading
import time

HELLO = b"b-glass\n\x00\x01\x01\x00\x00\x00\x00\x00"
through = False


def attempt(name, act):
    global through
    try:
        act()
        print(f"{name}: through")
        through = True
    except (OSError, ValueError) as error:
        print(f"{name}: {getattr(error, 'strerror', None) or error}")


def call(path):
    caller = socket.socket(socket.AF_UNIX)
    caller.settimeout(3)
    caller.connect(path)
    caller.sendall(HELLO)
    if caller.recv(16) != HELLO:
        raise ValueError("refused")


def serve(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()

    def accept():
        while True:
            listener.accept()[0].sendall(HELLO)

    threading.Thread(target=accept, daemon=True).start()


def brought_in():
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if b"connect" in file.read().split(b"\0"):
                        return int(name)
            except OSError:
                pass
    raise SystemExit("nobody was brought in")


control = sys.argv[1] == "control"
if control:
    place = "/tmp/guest.sock"
    serve(place)
    caller = os.fork()
    if caller == 0:
        time.sleep(60)
        os._exit(0)
else:
    place, caller = "/.bellglass/spool/guest.sock", brought_in()
attempt("call", lambda: call(place))
attempt("descriptors", lambda: os.listdir(f"/proc/{caller}/fd"))
attempt("memory", lambda: open(f"/proc/{caller}/mem", "rb").close())
attempt("variables", lambda: open(f"/proc/{caller}/environ", "rb").read())
attempt("rename", lambda: os.rename(place, place + ".old"))
attempt("replace", lambda: serve(place))
attempt("stop", lambda: os.kill(caller, signal.SIGSTOP))
attempt("kill", lambda: os.kill(caller, signal.SIGKILL))
sys.stdout.flush()
os._exit(42 if through else 0)
