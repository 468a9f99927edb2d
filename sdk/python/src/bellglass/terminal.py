"""Terminals in a sandbox, whose input and output continue after a reconnect.

           ┌────── disconnected, silent, not ready ───────┐
           ▼                                              │
connect ──▶ opened: input continues there ──▶ output, gaps, acknowledgements ──▶ end

The exec runs in the sandbox, independently of any connection. After a reconnect, output is requested from the offset that
was reached. Input is kept until the server acknowledges it, and unacknowledged input is sent again on the next connection.
Each keystroke therefore arrives once, even if the server was killed. Only one client may type at a time. Input from another
client is detected by its offsets and reported as an error; the two inputs are never mixed.
"""

from __future__ import annotations

import codecs
import json
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from .commands import ExecInfo, exec_info, milliseconds, start
from .errors import Conflict, InvalidRequest, refused
from .link import SILENCE_MAX, Ask, Failure, Link, last_words
from .outcome import End, Outcome, end_of
from .transport import Lost, Socket

PENDING_BYTES_MAX = 1 << 20
"""Maximum unacknowledged input, in bytes. This is more than a person pastes at once."""
WINDOW_BYTES = 64 << 10
"""Maximum input in flight, and maximum input per message, in bytes.

Further input stays on the client until the process reads, so that it does not delay resizes and signals.
"""
OFFSET_BYTES = 8


class AsyncTerminal:
    """A terminal in a sandbox. Iterate over it to read its output.

    Input is sent immediately as far as the program accepts it; the rest is sent while output is read.
    """

    def __init__(self, link: Link, sandbox: str, exec_id: str) -> None:
        #: The exec id; pass it to `pty.connect` to attach again.
        self.id = exec_id
        #: How the command ended, or `None` until its output was read to the end.
        self.end: End | None = None
        self._link = link
        self._path = f"/v1/sandboxes/{sandbox}/execs/{exec_id}"
        self._position = 0
        self._pending = bytearray()
        self._received: int | None = None
        self._sent = 0
        self._size: Mapping[str, int] | None = None
        self._requests: list[str] = []
        self._socket: Socket | None = None
        self._attempts = link.attempts()
        self._text = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # One thread may read while another types. The lock is held while messages are sent, so that their offsets are in
        # order. On an event loop, one thread always holds the lock, and the socket keeps the order.
        self._sending = threading.RLock()

    @property
    def outcome(self) -> Outcome | None:
        """How the command ended, or `None` until its output was read to the end."""
        return None if self.end is None else self.end.outcome

    async def write(self, data: str | bytes) -> None:
        """Send text or bytes as keyboard input.

        Raises:
            InvalidRequest: 1 MiB of input is already waiting because the program does not read.
        """
        data = data.encode() if isinstance(data, str) else data
        with self._sending:
            if len(self._pending) + len(data) > PENDING_BYTES_MAX:
                raise InvalidRequest(
                    f"{len(self._pending)} bytes of input are waiting for a program that does not read",
                    code="too_large",
                    layer="user_code",
                    ran="yes",
                    retryable=True,
                    hint="Wait until it reads, or interrupt it with a signal.",
                )
            self._pending += data
        await self._flush()

    async def resize(self, cols: int, rows: int) -> None:
        """Resize the terminal. The most recent size is sent again on every new connection."""
        self._size = {"cols": cols, "rows": rows}
        await self._say({"resize": self._size})

    async def send_signal(self, signal: int) -> None:
        """Send a signal to all processes of the terminal.

        The signal is sent at most once, so it may be lost if the connection breaks.
        """
        await self._say({"signal": int(signal)})

    async def kill(self) -> None:
        """Kill all processes of the terminal. The call is safe to repeat."""
        await self._link.call(Ask("DELETE", self._path))

    async def info(self) -> ExecInfo:
        """Return the current state of the terminal's exec."""
        return exec_info(await self._link.call(Ask("GET", self._path)))

    async def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over output until the end. Each byte is returned once. Output that was not retained is skipped."""
        while (output := await self._next()) is not None:
            yield output

    async def texts(self) -> AsyncIterator[str]:
        """Iterate over output as text until the program ends. Invalid UTF-8 is replaced by U+FFFD."""
        async for chunk in self.chunks():
            if text := self._text.decode(chunk):
                yield text

    def __aiter__(self) -> AsyncIterator[str]:
        return self.texts()

    async def read_until(self, mark: str) -> str:
        """Read until the output contains `mark` or ends. Return all output read, which may include text after the mark."""
        seen = ""
        while mark not in seen:
            chunk = await self._next()
            if chunk is None:
                return seen
            seen += self._text.decode(chunk)
        return seen

    async def wait(self) -> End:
        """Wait until the program ends and return its final record. Output is discarded."""
        async for _ in self.chunks():
            pass
        if self.end is None:
            raise self._link.protocol(f"the stream of {self.id} ended without an end event")
        return self.end

    async def leave(self) -> None:
        """Close the connection. The program keeps running, and iterating over the terminal reconnects."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def open(self) -> None:
        """Wait until the terminal is connected."""
        while self._socket is None and self.end is None:
            try:
                await self._connect()
            except Failure as failure:
                await self._link.pause(self._attempts, failure)

    async def _next(self) -> bytes | None:
        while self.end is None:
            try:
                socket = self._socket or await self._connect()
                output = self._accept(await self._receive(socket))
            except (KeyError, TypeError) as error:
                raise self._link.protocol(f"a message lacks {error}") from error
            except Failure as failure:
                await self.leave()
                await self._link.pause(self._attempts, failure)
                continue
            self._attempts.progress()
            await self._flush()
            if output is not None:
                return output
        await self.leave()
        return None

    async def _connect(self) -> Socket:
        """Connect without retries, and continue input at the offset that the server has received. Raises `Failure`."""
        ask = Ask("GET", f"{self._path}/terminal?from={self._position}", within=SILENCE_MAX)
        socket = await self._link.socket(ask)
        try:
            opened = _event(self._link, await self._receive(socket))
            if opened["type"] == "error":
                raise last_words(opened["error"])
            if opened["type"] != "opened":
                raise self._link.lie(f"the first message of a terminal has type {opened['type']!r}")
            with self._sending:
                self._take_receipt(opened["received"], len(self._pending))
                self._sent = opened["received"]
                if self._size is not None:
                    self._requests.insert(0, json.dumps({"resize": self._size}))
                self._socket = socket
        except BaseException:
            await socket.close()
            raise
        await self._flush()
        return socket

    async def _receive(self, socket: Socket) -> str | bytes:
        try:
            return await socket.receive(SILENCE_MAX)
        except Lost as lost:
            raise self._link.cut(lost.why) from lost

    async def _say(self, request: Mapping[str, Any]) -> None:
        self._requests.append(json.dumps(request))
        await self._flush()

    async def _flush(self) -> None:
        """Send pending input and requests. Errors are ignored, because the reader replaces a broken connection."""
        with self._sending:
            while (socket := self._socket) is not None and (message := self._outgoing()) is not None:
                try:
                    await socket.send(message)
                except Lost:
                    return

    def _outgoing(self) -> str | bytes | None:
        if self._requests:
            return self._requests.pop(0)
        if self._received is None:
            return None
        on_its_way = self._sent - self._received
        piece = bytes(self._pending[on_its_way : max(on_its_way, WINDOW_BYTES)])
        if not piece:
            return None
        message = self._sent.to_bytes(OFFSET_BYTES, "big") + piece
        self._sent += len(piece)
        return message

    def _accept(self, message: str | bytes) -> bytes | None:
        """Check that a message is consistent with the previous messages, and return its output, if any."""
        if isinstance(message, bytes):
            offset, output = int.from_bytes(message[:OFFSET_BYTES], "big"), message[OFFSET_BYTES:]
            if len(message) < OFFSET_BYTES or offset != self._position:
                raise self._link.lie(f"bytes of offset {offset} arrived at {self._position}")
            self._position += len(output)
            return output
        event = _event(self._link, message)
        kind = event["type"]
        if kind == "received":
            with self._sending:
                self._take_receipt(event["received"], self._sent - (self._received or 0))
        elif kind == "gap":
            if event["from"] != self._position or event["to"] <= event["from"]:
                raise self._link.lie(f"a gap from {event['from']} to {event['to']} arrived at {self._position}")
            self._position = event["to"]
        elif kind == "end":
            end = end_of(event["end"])
            if end.stdout_bytes != self._position:
                raise self._link.lie(f"the end event reports {end.stdout_bytes} bytes, but {self._position} arrived")
            self.end = end
        elif kind == "refused":
            # An invalid size or signal; the terminal stays open.
            raise Failure(refused(event["error"]))
        elif kind == "error":
            raise last_words(event["error"])
        return None

    def _take_receipt(self, received: int, ours: int) -> None:
        """Record that the server has received input up to the offset `received`.

        Raises `Failure` if the server received more than `ours` new bytes, because another client sent the others.
        """
        before = received if self._received is None else self._received
        if received < before:
            raise self._link.lie(f"{received} bytes of input were received, after {before}")
        if received - before > ours:
            error = Conflict(
                f"another client types at terminal {self.id}",
                code="conflict",
                layer="user_code",
                ran="yes",
                hint="Type from one client only. Any number of clients can read with `commands.connect`.",
            )
            raise Failure(error)
        del self._pending[: received - before]
        self._received = received


class AsyncTerminals:
    """The terminals of one sandbox."""

    def __init__(self, link: Link, sandbox: str) -> None:
        self._link, self._sandbox = link, sandbox

    async def create(
        self,
        command: Sequence[str] = ("bash",),
        *,
        cols: int = 80,
        rows: int = 24,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
    ) -> AsyncTerminal:
        """Start a program in a new terminal. Retries never start the program twice."""
        spec = {
            "argv": [*command],
            "env": dict(env or {}),
            "cwd": cwd,
            "deadline_ms": milliseconds(timeout),
            "terminal": {"cols": cols, "rows": rows},
        }
        info = await start(self._link, self._sandbox, spec)
        return await self.connect(info.id)

    async def connect(self, id: str) -> AsyncTerminal:
        """Attach to the terminal of an existing exec and read from the first retained byte."""
        terminal = AsyncTerminal(self._link, self._sandbox, id)
        await terminal.open()
        return terminal


def _event(link: Link, message: str | bytes) -> Mapping[str, Any]:
    try:
        event = json.loads(message)
    except ValueError as error:
        raise link.lie(f"a message is not valid JSON: {error}") from error
    if not isinstance(event, dict) or "type" not in event:
        raise link.lie("a message has no type")
    return event
