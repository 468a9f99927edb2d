"""Records between the guest and a process: JSON, each ended by one NUL byte."""

import _signal
import base64
import json
import math
import os
import select
import sys
from collections import deque
from contextlib import suppress
from threading import Condition, Lock, get_ident, main_thread

LARGEST_RESULT = 8_000_000
# Taken before user code exists, which may put its own in the place of the module's.
ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
DECODE = json.JSONDecoder().decode
CHUNK = 1 << 16


def pack(record):
    """A record as bytes. What JSON does not know is turned into what it knows, never into an error."""
    try:
        text = ENCODE(record)
    except (TypeError, ValueError, RecursionError):
        text = ENCODE(json_safe(record))
    # Half a surrogate, as in a file name that is no text, is nothing that JSON can carry.
    return text.encode("utf-8", "replace") + b"\0"


def json_safe(value, depth=0):
    """A copy of `value` of plain JSON types: no NaN, no bytes, no arrays, no strange keys, no endless depth."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if depth > 100:
        return "..."
    if isinstance(value, dict):
        return {str(key): json_safe(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [json_safe(item, depth + 1) for item in value]
    if hasattr(value, "tolist"):
        return json_safe(value.tolist(), depth + 1)
    return str(value)


def unpack(buffer):
    """Takes the whole records out of `buffer`, a bytearray, and leaves the rest there."""
    *whole, rest = bytes(buffer).split(b"\0")
    buffer[:] = rest
    return [DECODE(text.decode()) for text in whole]


class Undisturbed:
    """Holds an interrupt back until a record is out, because half a record would end the conversation.

    Only the main thread runs handlers, and it runs them whichever thread the kernel chose; so it is the handler that is
    exchanged.
    """

    def __enter__(self):
        self.came = False
        self.before = None
        if get_ident() == main_thread().ident:
            self.before = _signal.getsignal(_signal.SIGINT)
            if self.before is not None:
                _signal.signal(_signal.SIGINT, self.hold)

    def hold(self, number, frame):
        self.came = True

    def __exit__(self, *exception):
        if self.before is not None:
            _signal.signal(_signal.SIGINT, self.before)
            if self.came:
                _signal.raise_signal(_signal.SIGINT)


class Channel:
    """The guest's end of a fork's conversation. Any thread may send; only the process it was made in does."""

    def __init__(self, descriptor, kept=()):
        self.descriptor = descriptor
        self.kept = deque(kept)
        self.process = os.getpid()
        self.buffer = bytearray()
        self.sending = Lock()
        self.arrived = Condition(Lock())
        self.reading = False
        self.acks = 0
        self.asked = False

    def ours(self):
        """Whether this is the process that the guest speaks with, and not one that user code forked off it."""
        return os.getpid() == self.process

    def tell(self, record):
        """Sends a record that nobody answers."""
        if self.ours():
            with Undisturbed(), self.sending:
                self._send(pack(record))

    def result(self, result):
        """Sends a result and waits until the guest has taken it, so that what is printed later also comes later."""
        if not self.ours():
            return
        packed = pack({"result": result})
        if len(packed) > LARGEST_RESULT:
            types = list(result.get("data", ()))
            packed = pack({"result": {"kind": "omitted", "bytes": len(packed), "types": types}})
        flush()
        with Undisturbed(), self.sending:
            self._send(packed)
            self._wait(lambda: self.acks > 0)
            self.acks -= 1

    def next(self):
        """The next record that is not an acknowledgement, in the order they came."""
        self._wait(lambda: self.kept)
        self.asked = True
        return self.kept.popleft()

    def is_asked(self):
        """Whether the guest has asked for what is not answered yet: at every moment from its first byte on."""
        return self.asked or bool(self.buffer or self.kept) or bool(select.select([self.descriptor], [], [], 0)[0])

    def _send(self, packed):
        view = memoryview(packed)
        try:
            while view:
                view = view[os.write(self.descriptor, view) :]
        except OSError:
            os._exit(1)

    def _wait(self, ready):
        """Waits until `ready`. One thread reads at a time; it hands what is not its own to the others."""
        with self.arrived:
            while not ready():
                if self.reading:
                    self.arrived.wait()
                    continue
                self.reading = True
                asked = self.asked
                self.arrived.release()
                try:
                    data = self._receive()
                finally:
                    self.arrived.acquire()
                    self.reading = False
                self.buffer += data
                for record in unpack(self.buffer):
                    if "ack" in record:
                        self.acks += 1
                    else:
                        self.kept.append(record)
                self.asked = asked
                self.arrived.notify_all()

    def _receive(self):
        try:
            select.select([self.descriptor], [], [])
            self.asked = True
            data = os.read(self.descriptor, CHUNK)
        except OSError:
            data = b""
        if not data:
            os._exit(1)
        return data


def flush():
    """Writes out what Python still holds of both streams. A stream that is closed or broken is not our concern."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
