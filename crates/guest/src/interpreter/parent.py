"""The parent: imports what the template names, then only forks. It never runs a line of user code."""

import os
import select
import signal
import socket
import sys

from bellglass_interpreter import identity

CONTROL = 3
RECEIVED_AT_ONCE = 1 << 16
DESCRIPTORS = 4
QUIET = 0.1
"""Seconds without a request after which the parent sees to itself."""


def main():
    """Everything in the order that keeps it safe: who it is first, then what it imports, then requests."""
    try:
        uid = int(os.environ["BELLGLASS_UID"])
        imports = [name for name in os.environ.get("BELLGLASS_IMPORTS", "").split(",") if name]
        identity.become_parent(uid)
    except (OSError, KeyError, ValueError) as error:
        print(f"the interpreter cannot start: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(3)
    for name in [name for name in os.environ if name.startswith("BELLGLASS_")]:
        del os.environ[name]
    from bellglass_interpreter import warm

    ready = warm.up(imports)
    Parent(socket.socket(fileno=CONTROL), ready).serve()


class Parent:
    """Answers requests for forks and tells which of them have ended. One thread, two descriptors."""

    def __init__(self, control, ready):
        from bellglass_interpreter import channel, fork, pages

        self.pack, self.unpack, self.begin, self.collapse = channel.pack, channel.unpack, fork.begin, pages.collapse
        self.control = control
        self.control.setblocking(True)
        self.buffer = bytearray()
        self.received = []
        self.woken, waker = os.pipe()
        os.set_blocking(waker, False)
        os.set_blocking(self.woken, False)
        self.own = [CONTROL, self.woken, waker]
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        identity.hold_interrupts()
        self.say({"ready": ready})

    def say(self, record):
        try:
            self.control.sendall(self.pack(record))
        except OSError:
            os._exit(0)

    def serve(self):
        """Once, when nobody asks for anything, the parent makes its forks cheaper. The first of them does not wait for it."""
        quiet = QUIET
        while True:
            ready, _, _ = select.select([CONTROL, self.woken], [], [], quiet)
            if not ready:
                self.collapse()
                quiet = None
            if self.woken in ready:
                os.read(self.woken, 4096)
                self.reap()
            if CONTROL in ready:
                self.receive()

    def reap(self):
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.say({"ended": {"pid": pid, "status": status}})

    def receive(self):
        """Reads what is there. Descriptors come with the first bytes of their request, which may need several reads."""
        try:
            space = socket.CMSG_SPACE(DESCRIPTORS * 4)
            data, extra, _, _ = self.control.recvmsg(RECEIVED_AT_ONCE, space, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            data, extra = b"", []
        for level, kind, packed in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(packed) - len(packed) % 4
                self.received += memoryview(packed)[:whole].cast("i").tolist()
        if not data:
            os._exit(0)
        self.buffer += data
        for record in self.unpack(self.buffer):
            if "fork" in record:
                self.fork(record["fork"])

    def fork(self, request):
        descriptors, self.received = self.received[:DESCRIPTORS], self.received[DESCRIPTORS:]
        try:
            if len(descriptors) != DESCRIPTORS:
                raise OSError(22, f"expected {DESCRIPTORS} descriptors, received {len(descriptors)}")
            pid = os.fork()
        except OSError as error:
            answer = {"run": request["run"], "errno": error.errno or 0, "message": error.strerror or str(error)}
            self.say({"failed": answer})
        else:
            if pid == 0:
                self.descend(request, descriptors)
            self.say({"forked": {"run": request["run"], "pid": pid}})
        for descriptor in descriptors:
            os.close(descriptor)

    def descend(self, request, descriptors):
        """The fork's first steps. Whatever goes wrong here, it never comes back into the parent's loop."""
        try:
            self.begin(request, descriptors, self.own)
        except BaseException:  # noqa: BLE001
            import traceback

            traceback.print_exc()
        finally:
            os._exit(1)
