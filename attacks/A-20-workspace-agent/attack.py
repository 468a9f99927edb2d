"""Looks for the agent of a workspace, as it is or as `agent` plays it. See README.md."""
import ctypes
import os
import socket
import sys
import time

PORT = 2280
NAME = "\0agent"
PATH = "/run/agent.sock"
KEY = 0x0BE111A8
IPC_CREAT = 0o1000
libc = ctypes.CDLL(None, use_errno=True)
through = False


def attempt(name, act):
    global through
    try:
        act()
        print(f"{name}: through")
        through = True
    except OSError as error:
        print(f"{name}: {error.strerror or error}")


def shared(flags):
    found = libc.shmget(KEY, 4096, flags)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def agent():
    """What an agent has open to everybody."""
    port = socket.create_server(("127.0.0.1", PORT))
    names = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for name, address in zip(names, (NAME, PATH)):
        name.bind(address)
        name.listen()
    os.chmod(PATH, 0o666)
    shared(IPC_CREAT | 0o666)
    print("ready", flush=True)
    time.sleep(600)
    del port, names


def seen():
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    if file.read().split(b"\0")[-2:-1] == [b"agent"]:
                        return
            except OSError:
                pass
    raise OSError("nobody is to be seen")


def call(family, address):
    with socket.socket(family) as caller:
        caller.settimeout(3)
        caller.connect(address)


def write():
    with open("/var/tmp/left", "w") as file:
        file.write("read this")


if sys.argv[1] == "agent":
    agent()
attempt("port", lambda: call(socket.AF_INET, ("127.0.0.1", PORT)))
attempt("name", lambda: call(socket.AF_UNIX, NAME))
attempt("path", lambda: call(socket.AF_UNIX, PATH))
attempt("processes", seen)
attempt("memory", lambda: shared(0))
attempt("files", write)
sys.exit(42 if through else 0)
