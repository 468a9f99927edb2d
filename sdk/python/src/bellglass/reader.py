"""Reads the output of one exec: each byte once, in order, followed by the outcome.

           ┌── disconnected, silent, not ready ─────┐
           ▼                                        │
connect ──▶ read ── data, gap ──▶ the caller ── reads on
              └──── end ────────▶ the caller, then nothing more

The exec runs in the sandbox, independently of any connection. After a disconnect, the reader requests the rest of the
output from the offsets that it has reached. It checks every response: each byte must follow the previous one, and the end
record must agree with the number of bytes read. A stream that stops without an end record was interrupted and does not
count as ended.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import NotFound, SandboxLost
from .link import Ask, Failure, Lines, Link, last_words
from .outcome import End, end_of

OUTPUT_BYTES = 10_000_000
"""Default output retained per stream in the sandbox."""
TELL_PARTS = 4
"""Number of acknowledgements per retained buffer in mode `block`.

This is often enough that the process need not wait, and rare enough to add no noticeable cost.
"""
STREAMS: tuple[str, ...] = ("stdout", "stderr", "results")


@dataclass(frozen=True)
class Chunk:
    """Bytes that arrived on one stream."""

    stream: str
    offset: int
    data: bytes


@dataclass(frozen=True)
class Gap:
    """A range of bytes that were not retained, from `start` up to `end`."""

    stream: str
    start: int
    end: int


@dataclass(frozen=True)
class Shown:
    """Rich output of code, with its position in the text output."""

    result: Mapping[str, Any]
    stdout: int
    """Number of bytes written to standard output before this result."""
    stderr: int


Event = Chunk | Gap | Shown | End


class Reader:
    """Reads the events of one exec."""

    def __init__(self, link: Link, path: str, block_bytes: int | None = None) -> None:
        """Prepare a reader. With `block_bytes`, it acknowledges output, so that an exec in mode `block` can continue."""
        self._link, self._path = link, path
        self._position: dict[str, int] = dict.fromkeys(STREAMS, 0)
        self._every = None if block_bytes is None else max(block_bytes // TELL_PARTS, 1)
        self._told = (0, 0)
        self._tell_now = False
        self._lines: Lines | None = None
        self._attempts = link.attempts()
        self.end: End | None = None

    async def next(self) -> Event | None:
        """Return the next event, or `None` after the end. A call after an error continues at the same position."""
        while self.end is None:
            await self._tell()
            try:
                if self._lines is None:
                    self._lines = await Lines.open(self._link, self._rest())
                    continue
                line = await self._lines.next()
                self._attempts.progress()
                event = self._understood(line)
            except Failure as failure:
                await self.leave()
                await self._link.pause(self._attempts, failure)
                continue
            except BaseException:
                # Reading cannot continue in the middle of a line. A new connection requests the rest of the output.
                await self.leave()
                raise
            if isinstance(event, End):
                await self.leave()
                self.end = event
            if event is not None:
                return event
        return None

    async def leave(self) -> None:
        """Close the connection but keep the position.

        The next read acknowledges the position again, because a restarted server may not know it.
        """
        lines, self._lines = self._lines, None
        self._tell_now = self._now() != (0, 0)
        if lines is not None:
            await lines.close()

    def _rest(self) -> str:
        asked = "&".join(f"{stream}={at}" for stream, at in self._position.items())
        return f"{self._path}/output?{asked}"

    def _understood(self, line: Mapping[str, Any]) -> Event | None:
        try:
            return self._accept(line)
        except (KeyError, TypeError) as error:
            raise self._link.lie(f"a line of type {line.get('type')!r} lacks {error}") from error

    def _accept(self, line: Mapping[str, Any]) -> Event | None:
        """Check that a line is consistent with the previous lines, and return its event."""
        kind = line.get("type")
        if kind == "data":
            return self._data(line)
        if kind == "result":
            self._step("results", line["offset"], line["next"])
            return Shown(line["result"], line["stdout"], line["stderr"])
        if kind == "gap":
            self._step(line["stream"], line["from"], line["to"])
            return Gap(line["stream"], line["from"], line["to"])
        if kind == "heartbeat":
            # The exec is silent, perhaps because the process waits for us.
            self._tell_now = self._told != self._now()
            return None
        if kind == "end":
            end = end_of(line["end"])
            said = {"stdout": end.stdout_bytes, "stderr": end.stderr_bytes, "results": end.results_bytes}
            if said != self._position:
                raise self._link.lie(f"the end event reports {said} bytes of each stream, but {self._position} arrived")
            return end
        if kind == "error":
            raise last_words(line["error"])
        raise self._link.lie(f"a line has the unknown type {kind!r}")

    def _data(self, line: Mapping[str, Any]) -> Chunk:
        text, encoded = line.get("text"), line.get("base64")
        if (text is None) == (encoded is None):
            raise self._link.lie("data needs exactly one of text and base64")
        try:
            data = base64.b64decode(encoded, validate=True) if encoded is not None else str(text).encode()
        except binascii.Error as error:
            raise self._link.lie(str(error)) from error
        self._step(line["stream"], line["offset"], line["offset"] + len(data))
        return Chunk(line["stream"], line["offset"], data)

    def _step(self, stream: str, start: int, end: int) -> None:
        at = self._position.get(stream)
        if start != at or end <= start:
            raise self._link.lie(f"{stream} from {start} to {end} arrived at {at}")
        self._position[stream] = end

    def _now(self) -> tuple[int, int]:
        return self._position["stdout"], self._position["stderr"]

    async def _tell(self) -> None:
        """Acknowledge the output returned to the caller, if enough has accumulated or an acknowledgement is due."""
        if self._every is None:
            return
        now = self._now()
        most = max(here - told for here, told in zip(now, self._told, strict=True))
        if most < self._every and not self._tell_now:
            return
        ask = Ask("PUT", f"{self._path}/read?stdout={now[0]}&stderr={now[1]}")
        # A lost sandbox or exec shows up in the output, as an outcome or an error.
        with contextlib.suppress(SandboxLost, NotFound):
            await self._link.call(ask)
        self._told, self._tell_now = now, False
