"""Run commands in a sandbox.

Each run of a command is an exec. An exec continues in the sandbox even if the client disconnects.
"""

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

from .errors import BellglassError, DeadlineExceeded, RateLimited
from .link import Ask, Link
from .outcome import CommandResult, End, Kept, Outcome, decode
from .reader import OUTPUT_BYTES, Chunk, Reader

TIMEOUT = 60.0
"""Default wall-clock limit of a command, in seconds."""
PIECE_BYTES_MAX = 1 << 20
"""Maximum standard input per request."""
WRITE_WITHIN = 24 * 3600.0
"""Timeout for a write that waits for the process to read, in seconds. No process runs for longer than this."""
WRITE_PAUSE = 0.1
"""Delay before resending input that the process did not accept, in seconds."""
CANCEL_WITHIN = 5.0
"""Timeout for cancelling the exec when a run is interrupted, in seconds."""

OnText = Callable[[str], Any]


class Line(str):
    """A line of output without its line ending. `stream` is `stdout` or `stderr`."""

    stream: str

    def __new__(cls, text: str, stream: str) -> Line:
        line = super().__new__(cls, text)
        line.stream = stream
        return line


@dataclass(frozen=True)
class ExecInfo:
    """The state of an exec."""

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
    """A started command. Iterate over it to read its output line by line."""

    def __init__(self, link: Link, sandbox: str, id: str, block_bytes: int | None = None) -> None:
        #: The exec id; pass it to `commands.connect` to attach again.
        self.id = id
        self._link = link
        self._path = f"/v1/sandboxes/{sandbox}/execs/{id}"
        self._reader = Reader(link, self._path, block_bytes)
        self._kept = {"stdout": Kept(), "stderr": Kept()}
        self._stdin: int | None = None

    @property
    def stdout(self) -> str:
        """Standard output that was read so far, by iteration or by `wait`."""
        return self._kept["stdout"].text()

    @property
    def stderr(self) -> str:
        """Standard error that was read so far, by iteration or by `wait`."""
        return self._kept["stderr"].text()

    @property
    def end(self) -> End | None:
        """How the command ended, or `None` until its output was read to the end."""
        return self._reader.end

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Iterate over output as it arrives.

        Each byte is returned once and in order, even if the connection breaks or the server restarts.
        """
        try:
            while (event := await self._reader.next()) is not None:
                if isinstance(event, Chunk):
                    self._kept[event.stream].add(event.data)
                    yield event
        finally:
            await self._reader.leave()

    async def lines(self) -> AsyncIterator[Line]:
        """Iterate over output line by line. Invalid UTF-8 is replaced by U+FFFD."""
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
        """Wait until the command ends, and pass its output to the callbacks as it arrives."""
        tell = {"stdout": on_stdout, "stderr": on_stderr}
        texts = _Texts()
        async for chunk in self.chunks():
            await told(tell[chunk.stream], texts.of(chunk))
        for stream, callback in tell.items():
            await told(callback, texts.last(stream))
        if self.end is None:
            raise self._link.protocol(f"the stream of {self.id} ended without an end event")
        return CommandResult(self.stdout, self.stderr, self.end)

    async def info(self) -> ExecInfo:
        """Return the current state of the exec."""
        return exec_info(await self._link.call(Ask("GET", self._path)))

    async def kill(self) -> None:
        """Kill all processes of the exec. Its outcome is then `cancelled`. The call is safe to repeat."""
        await self._link.call(Ask("DELETE", self._path))

    async def send_signal(self, signal: int | signals.Signals) -> int:
        """Send a signal to all processes of the exec and return the number of processes.

        The request is sent at most once. If the connection breaks, the raised error has `ran` set to `unknown`.
        """
        said = await self._link.call(Ask("POST", f"{self._path}/signal").json({"signal": int(signal)}))
        return int(said["processes"])

    async def write_stdin(self, data: str | bytes) -> None:
        """Write to standard input. The call waits while the process does not read; retries never duplicate a byte."""
        data = data.encode() if isinstance(data, str) else data
        for at in range(0, len(data), PIECE_BYTES_MAX):
            await self._send(data[at : at + PIECE_BYTES_MAX], last=False)

    async def close_stdin(self) -> None:
        """Close standard input, so that the process reads end-of-file after the last byte."""
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
                # The server does not hold a request open for as long as a process may leave its input unread.
                if time.monotonic() > until:
                    raise
                await self._link.transport.sleep(WRITE_PAUSE)
        expected = self._stdin + len(piece)
        if said["received"] < expected:
            raise self._link.protocol(f"stdin received {said['received']} of {expected} bytes")
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
        """Run a command to completion.

        If the call is interrupted (Ctrl-C, a cancelled task, a callback that raises), the command is killed in the
        sandbox.

        Args:
            command: A string is passed to `sh -c`; a list is a program and its arguments.
            timeout: Wall-clock limit in seconds.
            on_stdout: Called with each piece of standard output as text; may be a coroutine function in async code.
            on_stderr: Like `on_stdout`, for standard error.
            artifacts: Folders whose new and changed files are kept after the run, or a mapping with folders and limits.
        """
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
        """Start a command and return immediately. Retries never start the command twice.

        Args:
            command: A string is passed to `sh -c`; a list is a program and its arguments.
            timeout: Wall-clock limit in seconds.
            stdin: Whether the command reads input from `write_stdin`.
            output: What to do when a stream exceeds `output_bytes`: `keep` drops the middle of the output, `block` makes
                the command wait for its reader, `kill` kills the command.
            output_bytes: Output retained per stream; 10 MB by default.
            artifacts: Folders whose new and changed files are kept after the run, or a mapping with folders and limits.
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
        """List the execs of the sandbox, including ended ones."""
        return [exec_info(item) for item in await self._link.pages(f"/v1/sandboxes/{self._sandbox}/execs")]

    async def connect(self, id: str, *, take_bytes: int | None = None) -> AsyncExec:
        """Attach to an existing exec and read its output from the first byte.

        Args:
            id: The exec id.
            take_bytes: For an exec in mode `block`, its `output_bytes`. The reader then acknowledges output, so that the
                exec can continue.
        """
        info = await AsyncExec(self._link, self._sandbox, id).info()
        return AsyncExec(self._link, self._sandbox, info.id, take_bytes)


class _Texts:
    """Decodes both streams as UTF-8, including characters that are split across chunks."""

    def __init__(self) -> None:
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {stream: make(errors="replace") for stream in ("stdout", "stderr")}

    def of(self, chunk: Chunk) -> str:
        return self._decoders[chunk.stream].decode(chunk.data)

    def last(self, stream: str) -> str:
        return self._decoders[stream].decode(b"", final=True)


@contextlib.asynccontextmanager
async def ending(started: AsyncExec) -> AsyncIterator[None]:
    """Kill the exec if reading is interrupted. After a `BellglassError` the exec continues, and reading can be resumed."""
    try:
        yield
    except BellglassError:
        raise
    except BaseException:
        with contextlib.suppress(Exception):
            await started._link.call(Ask("DELETE", started._path, within=CANCEL_WITHIN))
        raise


async def told(callback: Callable[..., Any] | None, what: Any) -> None:
    """Call a callback, unless it is `None` or the text is empty. The callback may be a coroutine function."""
    if callback is not None and what != "":
        said = callback(what)
        if inspect.isawaitable(said):
            await said


async def start(link: Link, sandbox: str, spec: Mapping[str, Any], within: float | None = None) -> ExecInfo:
    """Start an exec. Retries never start a second exec."""
    ask = Ask("POST", f"/v1/sandboxes/{sandbox}/execs", within=within).json(spec).once()
    return exec_info(await link.call(ask))


def exec_info(body: Mapping[str, Any]) -> ExecInfo:
    """Decode an exec from its JSON form."""
    rest = {name: value for name, value in body.items() if name != "outcome"}
    outcome = body.get("outcome")
    return decode(ExecInfo, rest, outcome=None if outcome is None else decode(Outcome, outcome))


def keep(artifacts: Sequence[str] | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Convert the argument `artifacts`, which is a list of folders or a mapping, to its JSON form."""
    if artifacts is None:
        return None
    if isinstance(artifacts, Mapping):
        return dict(artifacts)
    return {"folders": [artifacts] if isinstance(artifacts, str) else [*artifacts]}


def milliseconds(seconds: float | None) -> int | None:
    """Convert seconds to whole milliseconds, at least 1."""
    return None if seconds is None else max(1, round(seconds * 1000))
