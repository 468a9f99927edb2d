"""A reader of one exec: every byte once and in order, then its end.

           ┌──────── cut, silent, not ready ────────┐
           ▼                                        │
connect ──▶ read ── data, gap ──▶ the caller ── asks for more
              └──── end ────────▶ the caller, then nothing more

The exec lives in the sandbox, not in a connection. A reader that lost its connection asks for the rest from the offsets it
has reached, and checks what it is told: every byte must follow the one before, and the end must agree with what was read.
A stream that stops without an end was cut; it never counts as an end.
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
"""What a sandbox keeps of a stream, unless another number is asked for."""
TELL_PARTS = 4
"""In mode `block` the server is told what was taken each time so large a part of what is kept was read: early enough
that the process need not wait, seldom enough that it costs nothing."""
STREAMS: tuple[str, ...] = ("stdout", "stderr", "results")


@dataclass(frozen=True)
class Chunk:
    """Bytes of a stream."""

    stream: str
    offset: int
    data: bytes


@dataclass(frozen=True)
class Gap:
    """Bytes that were not kept, from `start` up to `end`."""

    stream: str
    start: int
    end: int


@dataclass(frozen=True)
class Shown:
    """Something that code shows besides what it writes, in order with it."""

    result: Mapping[str, Any]
    stdout: int
    """How many bytes of standard output were written before it."""
    stderr: int


Event = Chunk | Gap | Shown | End


class Reader:
    """What comes of one exec."""

    def __init__(self, link: Link, path: str, block_bytes: int | None = None) -> None:
        """With `block_bytes`, tells the server what was read, so that an exec in mode `block` goes on."""
        self._link, self._path = link, path
        self._position: dict[str, int] = dict.fromkeys(STREAMS, 0)
        self._every = None if block_bytes is None else max(block_bytes // TELL_PARTS, 1)
        self._told = (0, 0)
        self._tell_now = False
        self._lines: Lines | None = None
        self._attempts = link.attempts()
        self.end: End | None = None

    async def next(self) -> Event | None:
        """The next thing that happens; nothing after the end. After an error, asking again goes on from the same place."""
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
                # Whoever was interrupted in the middle of a line cannot go on with it; the rest can be asked for again.
                await self.leave()
                raise
            if isinstance(event, End):
                await self.leave()
                self.end = event
            if event is not None:
                return event
        return None

    async def leave(self) -> None:
        """Leaves the connection; the position stays. What was taken is told once more: the next server may not know."""
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
            raise self._link.lie(f"a line of type {line.get('type')!r} without {error}") from error

    def _accept(self, line: Mapping[str, Any]) -> Event | None:
        """Checks a line against what came before."""
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
            # Nothing happens: perhaps because the process waits for us.
            self._tell_now = self._told != self._now()
            return None
        if kind == "end":
            end = end_of(line["end"])
            said = {"stdout": end.stdout_bytes, "stderr": end.stderr_bytes, "results": end.results_bytes}
            if said != self._position:
                raise self._link.lie(f"the end says {said} bytes of each stream, {self._position} came")
            return end
        if kind == "error":
            raise last_words(line["error"])
        raise self._link.lie(f"a line of type {kind!r}")

    def _data(self, line: Mapping[str, Any]) -> Chunk:
        text, encoded = line.get("text"), line.get("base64")
        if (text is None) == (encoded is None):
            raise self._link.lie("data that is not either text or base64")
        try:
            data = base64.b64decode(encoded, validate=True) if encoded is not None else str(text).encode()
        except binascii.Error as error:
            raise self._link.lie(str(error)) from error
        self._step(line["stream"], line["offset"], line["offset"] + len(data))
        return Chunk(line["stream"], line["offset"], data)

    def _step(self, stream: str, start: int, end: int) -> None:
        at = self._position.get(stream)
        if start != at or end <= start:
            raise self._link.lie(f"{stream} from {start} to {end} came at {at}")
        self._position[stream] = end

    def _now(self) -> tuple[int, int]:
        return self._position["stdout"], self._position["stderr"]

    async def _tell(self) -> None:
        """Tells the server what was taken: everything that the caller had before it asked for more."""
        if self._every is None:
            return
        now = self._now()
        most = max(here - told for here, told in zip(now, self._told, strict=True))
        if most < self._every and not self._tell_now:
            return
        ask = Ask("PUT", f"{self._path}/read?stdout={now[0]}&stderr={now[1]}")
        # What is gone is told by the output, as an outcome or an error of its own.
        with contextlib.suppress(SandboxLost, NotFound):
            await self._link.call(ask)
        self._told, self._tell_now = now, False
