"""Commands in a sandbox. One run of a command is an exec: it lives in the sandbox, whoever is connected."""

from __future__ import annotations

import builtins
import codecs
import contextlib
import inspect
import signal as signals
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import BelljarError, DeadlineExceeded, RateLimited
from .link import Ask, Link
from .outcome import CommandResult, End, Kept, Outcome, decode
from .reader import OUTPUT_BYTES, Chunk, Reader

TIMEOUT = 60.0
"""The wall-clock limit of a command, unless another is asked for."""
PIECE_BYTES_MAX = 1 << 20
"""The most standard input that the server takes at once."""
WRITE_WITHIN = 24 * 3600.0
"""A write waits while the process does not read, and no process outlives this."""
WRITE_PAUSE = 0.1
"""The pause before input is sent again that the process did not take."""
CANCEL_WITHIN = 5.0
"""Whoever interrupts a run waits no longer for its end to be asked for."""

OnText = Callable[[str], Any]


class Line(str):
    """A line of output without its end. `stream` says where it was written to."""

    stream: str

    def __new__(cls, text: str, stream: str) -> Line:
        line = super().__new__(cls, text)
        line.stream = stream
        return line


@dataclass(frozen=True)
class ExecInfo:
    """How an exec is doing."""

    id: str
    argv: str
    """The program and its arguments, shortened."""
    outcome: Outcome | None = None
    processes: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stdin_bytes: int = 0
    duration_ms: int = 0
    context: str | None = None
    terminal: Mapping[str, int] | None = None


class AsyncExec:
    """A command that was started."""

    def __init__(self, link: Link, sandbox: str, id: str, block_bytes: int | None = None) -> None:
        #: Its id; `commands.connect` finds it again.
        self.id = id
        self._link = link
        self._path = f"/v1/sandboxes/{sandbox}/execs/{id}"
        self._reader = Reader(link, self._path, block_bytes)
        self._kept = {"stdout": Kept(), "stderr": Kept()}
        self._stdin: int | None = None

    @property
    def stdout(self) -> str:
        """What was read of standard output so far, by iterating or waiting."""
        return self._kept["stdout"].text()

    @property
    def stderr(self) -> str:
        """What was read of standard error so far."""
        return self._kept["stderr"].text()

    @property
    def end(self) -> End | None:
        """How it ended, once that was read."""
        return self._reader.end

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Its output as it comes: every byte once and in order, whatever becomes of connections and the server."""
        try:
            while (event := await self._reader.next()) is not None:
                if isinstance(event, Chunk):
                    self._kept[event.stream].add(event.data)
                    yield event
        finally:
            await self._reader.leave()

    async def lines(self) -> AsyncIterator[Line]:
        """Its output line by line. What is not UTF-8 is shown as U+FFFD."""
        texts = _Texts()
        rest = {"stdout": "", "stderr": ""}
        async for chunk in self.chunks():
            *whole, rest[chunk.stream] = (rest[chunk.stream] + texts.of(chunk)).split("\n")
            for line in whole:
                yield Line(line, chunk.stream)
        for stream, text in rest.items():
            if text := text + texts.last(stream):
                yield Line(text, stream)

    def __aiter__(self) -> AsyncIterator[Line]:
        return self.lines()

    async def wait(self, on_stdout: OnText | None = None, on_stderr: OnText | None = None) -> CommandResult:
        """Reads to the end, and tells the callbacks what comes."""
        tell = {"stdout": on_stdout, "stderr": on_stderr}
        texts = _Texts()
        async for chunk in self.chunks():
            await told(tell[chunk.stream], texts.of(chunk))
        for stream, callback in tell.items():
            await told(callback, texts.last(stream))
        if self.end is None:
            raise self._link.protocol(f"nothing was said of the end of {self.id}")
        return CommandResult(self.stdout, self.stderr, self.end)

    async def info(self) -> ExecInfo:
        """How it is doing."""
        return exec_info(await self._link.call(Ask("GET", self._path)))

    async def kill(self) -> None:
        """Ends all its processes; its outcome is then `cancelled`. Can be repeated."""
        await self._link.call(Ask("DELETE", self._path))

    async def send_signal(self, signal: int | signals.Signals) -> int:
        """Sends a signal to all its processes; says how many there were. It is not sent twice: when the connection
        breaks, the error says that it may have arrived."""
        said = await self._link.call(Ask("POST", f"{self._path}/signal").json({"signal": int(signal)}))
        return int(said["processes"])

    async def write_stdin(self, data: str | bytes) -> None:
        """Sends input, each byte once; waits while the process does not read."""
        data = data.encode() if isinstance(data, str) else data
        for at in range(0, len(data), PIECE_BYTES_MAX):
            await self._send(data[at : at + PIECE_BYTES_MAX], last=False)

    async def close_stdin(self) -> None:
        """Ends its input: the process reads the end of file after the last byte."""
        await self._send(b"", last=True)

    async def _send(self, piece: bytes, last: bool) -> None:
        if self._stdin is None:
            self._stdin = (await self.info()).stdin_bytes
        path = f"{self._path}/stdin?offset={self._stdin}&last={str(last).lower()}"
        until = time.monotonic() + WRITE_WITHIN
        while True:
            try:
                said = await self._link.call(Ask("PUT", path, body=piece))
                break
            except (DeadlineExceeded, RateLimited):
                # The server does not hold a request for as long as a process may choose not to read.
                if time.monotonic() > until:
                    raise
                await self._link.transport.sleep(WRITE_PAUSE)
        expected = self._stdin + len(piece)
        if said["received"] < expected:
            raise self._link.protocol(f"standard input took {said['received']} of {expected} bytes")
        self._stdin = expected


class AsyncCommands:
    """Runs commands in one sandbox."""

    def __init__(self, link: Link, sandbox: str) -> None:
        self._link, self._sandbox = link, sandbox

    async def run(
        self,
        command: str | Sequence[str],
        *,
        timeout: float | None = TIMEOUT,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        artifacts: Sequence[str] | Mapping[str, Any] | None = None,
    ) -> CommandResult:
        """Runs a command to its end. A text is a line for `sh`; a list is a program and its arguments. One that is
        interrupted here (Ctrl-C, a cancelled task, a callback that raises) is ended there."""
        started = await self.start(command, timeout=timeout, env=env, cwd=cwd, artifacts=artifacts)
        async with ending(started):
            return await started.wait(on_stdout, on_stderr)

    async def start(
        self,
        command: str | Sequence[str],
        *,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bool = False,
        output: str = "keep",
        output_bytes: int | None = None,
        artifacts: Sequence[str] | Mapping[str, Any] | None = None,
    ) -> AsyncExec:
        """Starts a command and comes back at once. However often it has to be asked, it is started once.

        `output` says what happens when it writes more than `output_bytes` (10 MB of each stream): `keep` drops the
        middle, `block` has the command wait for its reader, `kill` ends it.
        """
        spec = {
            "argv": ["sh", "-c", command] if isinstance(command, str) else [*command],
            "env": dict(env or {}),
            "cwd": cwd,
            "stdin": stdin,
            "deadline_ms": milliseconds(timeout),
            "output": output,
            "output_bytes": output_bytes,
            "artifacts": keep(artifacts),
        }
        info = await start(self._link, self._sandbox, spec)
        block_bytes = (output_bytes or OUTPUT_BYTES) if output == "block" else None
        return AsyncExec(self._link, self._sandbox, info.id, block_bytes)

    async def list(self) -> builtins.list[ExecInfo]:
        """The execs of the sandbox, ended ones included."""
        return [exec_info(item) for item in await self._link.pages(f"/v1/sandboxes/{self._sandbox}/execs")]

    async def connect(self, id: str, *, take_bytes: int | None = None) -> AsyncExec:
        """An exec that was started before, from its first byte. `take_bytes` is the `output_bytes` of one in mode
        `block`, which then goes on as this reader reads."""
        info = await AsyncExec(self._link, self._sandbox, id).info()
        return AsyncExec(self._link, self._sandbox, info.id, take_bytes)


class _Texts:
    """Text out of bytes that may be cut within a character."""

    def __init__(self) -> None:
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {stream: make(errors="replace") for stream in ("stdout", "stderr")}

    def of(self, chunk: Chunk) -> str:
        return self._decoders[chunk.stream].decode(chunk.data)

    def last(self, stream: str) -> str:
        return self._decoders[stream].decode(b"", final=True)


@contextlib.asynccontextmanager
async def ending(started: AsyncExec) -> AsyncIterator[None]:
    """Ends an exec whose reader is interrupted. One that cannot be read goes on: it may be read again."""
    try:
        yield
    except BelljarError:
        raise
    except BaseException:
        with contextlib.suppress(Exception):
            await started._link.call(Ask("DELETE", started._path, within=CANCEL_WITHIN))
        raise


async def told(callback: Callable[..., Any] | None, what: Any) -> None:
    """Calls a callback that may be a coroutine function, if there is one and something to say."""
    if callback is not None and what != "":
        said = callback(what)
        if inspect.isawaitable(said):
            await said


async def start(link: Link, sandbox: str, spec: Mapping[str, Any], within: float | None = None) -> ExecInfo:
    """Starts an exec, once."""
    ask = Ask("POST", f"/v1/sandboxes/{sandbox}/execs", within=within).json(spec).once()
    return exec_info(await link.call(ask))


def exec_info(body: Mapping[str, Any]) -> ExecInfo:
    """An exec as it travels."""
    rest = {name: value for name, value in body.items() if name != "outcome"}
    outcome = body.get("outcome")
    return decode(ExecInfo, rest, outcome=None if outcome is None else decode(Outcome, outcome))


def keep(artifacts: Sequence[str] | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Which files to keep: folders, or folders with bounds."""
    if artifacts is None:
        return None
    if isinstance(artifacts, Mapping):
        return dict(artifacts)
    return {"folders": [artifacts] if isinstance(artifacts, str) else [*artifacts]}


def milliseconds(seconds: float | None) -> int | None:
    """Seconds as the API has them."""
    return None if seconds is None else max(1, round(seconds * 1000))
