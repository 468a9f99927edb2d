"""A terminal in a sandbox: keys in, screen out, over as many connections as it takes.

           ┌─────────── cut, silent, not ready ───────────┐
           ▼                                              │
connect ──▶ opened: input goes on from there ──▶ output, gaps, what was received ──▶ end

The exec lives in the sandbox. Output is asked for from the offset reached. Input is kept until the server says that it was
received, and sent again from there on the next connection: each key arrives once, though the server was killed. One client
types at a time; what others typed between shows in the offsets and is an error, not a mixture.
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
"""Input that was not received yet: more than a person pastes."""
WINDOW_BYTES = 64 << 10
"""Input on its way at once, and in one message. What the process does not take stays here, so that sizes and signals get
past it."""
OFFSET_BYTES = 8


class AsyncTerminal:
    """One terminal. It is read by iterating; what is typed goes out at once as far as the program takes it, and the rest
    while it is read."""

    def __init__(self, link: Link, sandbox: str, exec_id: str) -> None:
        #: The id of its exec; `pty.connect` finds it again.
        self.id = exec_id
        #: How it ended, once that was read.
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
        # Two threads may read and type. Held while messages go out, so that their offsets are in order; on an event loop
        # it is always the same thread's, and the socket itself keeps the order.
        self._sending = threading.RLock()

    @property
    def outcome(self) -> Outcome | None:
        """How it ended, once that was read."""
        return None if self.end is None else self.end.outcome

    async def write(self, data: str | bytes) -> None:
        """Types this. Raises `InvalidRequest` where a megabyte waits already for a program that does not read."""
        data = data.encode() if isinstance(data, str) else data
        with self._sending:
            if len(self._pending) + len(data) > PENDING_BYTES_MAX:
                raise InvalidRequest(
                    f"{len(self._pending)} bytes of input wait for a program that does not read",
                    code="too_large",
                    layer="user_code",
                    ran="yes",
                    retryable=True,
                    hint="Wait until it reads, or interrupt it with a signal.",
                )
            self._pending += data
        await self._flush()

    async def resize(self, cols: int, rows: int) -> None:
        """Gives it another size; the last one is also said on every new connection."""
        self._size = {"cols": cols, "rows": rows}
        await self._say({"resize": self._size})

    async def send_signal(self, signal: int) -> None:
        """Sends a signal to all its processes, at most once: it is lost with its connection."""
        await self._say({"signal": int(signal)})

    async def kill(self) -> None:
        """Ends all its processes. Can be repeated."""
        await self._link.call(Ask("DELETE", self._path))

    async def info(self) -> ExecInfo:
        """How its exec is doing."""
        return exec_info(await self._link.call(Ask("GET", self._path)))

    async def chunks(self) -> AsyncIterator[bytes]:
        """What it writes, until it ends: each byte once, but for what was not kept."""
        while (output := await self._next()) is not None:
            yield output

    async def texts(self) -> AsyncIterator[str]:
        """The same as text."""
        async for chunk in self.chunks():
            if text := self._text.decode(chunk):
                yield text

    def __aiter__(self) -> AsyncIterator[str]:
        return self.texts()

    async def read_until(self, mark: str) -> str:
        """Reads until this was written or it ended; gives all that came, which may be more."""
        seen = ""
        while mark not in seen:
            chunk = await self._next()
            if chunk is None:
                return seen
            seen += self._text.decode(chunk)
        return seen

    async def wait(self) -> End:
        """Reads to the end."""
        async for _ in self.chunks():
            pass
        if self.end is None:
            raise self._link.protocol(f"nothing was said of the end of {self.id}")
        return self.end

    async def leave(self) -> None:
        """Leaves the connection; the program goes on, and iterating comes back to it."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def open(self) -> None:
        """Waits until it is connected."""
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
                raise self._link.protocol(f"a message without {error}") from error
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
        """Connects once, and takes up input where it was received. Raises `Failure`."""
        ask = Ask("GET", f"{self._path}/terminal?from={self._position}", within=SILENCE_MAX)
        socket = await self._link.socket(ask)
        try:
            opened = _event(self._link, await self._receive(socket))
            if opened["type"] == "error":
                raise last_words(opened["error"])
            if opened["type"] != "opened":
                raise self._link.lie(f"a terminal that begins with {opened['type']!r}")
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
        """Sends what there is to send. A connection that is broken is for the reader to replace."""
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
        """Checks a message against what came before; gives the output that it has."""
        if isinstance(message, bytes):
            offset, output = int.from_bytes(message[:OFFSET_BYTES], "big"), message[OFFSET_BYTES:]
            if len(message) < OFFSET_BYTES or offset != self._position:
                raise self._link.lie(f"bytes of offset {offset} came at {self._position}")
            self._position += len(output)
            return output
        event = _event(self._link, message)
        kind = event["type"]
        if kind == "received":
            with self._sending:
                self._take_receipt(event["received"], self._sent - (self._received or 0))
        elif kind == "gap":
            if event["from"] != self._position or event["to"] <= event["from"]:
                raise self._link.lie(f"a gap from {event['from']} to {event['to']} came at {self._position}")
            self._position = event["to"]
        elif kind == "end":
            end = end_of(event["end"])
            if end.stdout_bytes != self._position:
                raise self._link.lie(f"the end says {end.stdout_bytes} bytes, {self._position} came")
            self.end = end
        elif kind == "refused":
            # A size or a signal that was wrong; the terminal goes on.
            raise Failure(refused(event["error"]))
        elif kind == "error":
            raise last_words(event["error"])
        return None

    def _take_receipt(self, received: int, ours: int) -> None:
        """Input below this offset was received: of ours at most `ours` bytes."""
        before = received if self._received is None else self._received
        if received < before:
            raise self._link.lie(f"{received} bytes of input were received, after {before}")
        if received - before > ours:
            error = Conflict(
                f"somebody else types at the terminal {self.id}",
                code="conflict",
                layer="user_code",
                ran="yes",
                hint="Have one client type; any number may read along with `commands.connect`.",
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
        """Starts a program on a terminal. However often it has to be asked, it is started once."""
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
        """The terminal of an exec that was started before, from the first byte that was kept."""
        terminal = AsyncTerminal(self._link, self._sandbox, id)
        await terminal.open()
        return terminal


def _event(link: Link, message: str | bytes) -> Mapping[str, Any]:
    try:
        event = json.loads(message)
    except ValueError as error:
        raise link.lie(f"a message that is none: {error}") from error
    if not isinstance(event, dict) or "type" not in event:
        raise link.lie("a message without a type")
    return event
