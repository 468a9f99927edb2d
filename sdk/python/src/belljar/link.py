"""One request over as many connections as it takes.

A request is sent again when it failed before anything was sent, or when it can be repeated without a further effect: it
asks or replaces, or carries an idempotency key. Everything else fails with `ran` being `unknown` once it was sent.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from .errors import BelljarError, ConnectionFailed, ProtocolBroken, refused
from .patience import Attempts, Patience, Trouble
from .transport import Answer, Body, Lost, Refused, Request, Socket, Transport

ANSWER_WITHIN = 60.0
"""The slowest answer is that of a start or a stop on a machine that is busy with many others."""
SILENCE_MAX = 15.0
"""Three heartbeats that did not come."""
ANSWER_BYTES_MAX = 16 << 20
"""The largest JSON body of a server."""
LINE_BYTES_MAX = 8 << 20
"""The longest line of a stream."""
PAGES_MAX = 10_000
"""A longer list is a server that goes round in circles."""
NDJSON = "application/x-ndjson"
API_VERSION = "1"
SLOWEST_BYTES_PER_SECOND = 64 << 10
"""A link that carries less is of no use."""
FOREIGN_SHOWN = 200
"""What is shown of an answer that is not one of ours."""


@dataclass(frozen=True)
class Ask:
    """A request, and whether it may be sent twice."""

    method: str
    path: str
    body: bytes | Body = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    within: float | None = None
    repeatable: bool | None = None
    stream: bool = False

    def may_repeat(self) -> bool:
        """Whether it does no harm when it is sent again."""
        return self.method != "POST" if self.repeatable is None else self.repeatable

    def json(self, body: object) -> Ask:
        """With this as its body."""
        headers = {**self.headers, "content-type": "application/json"}
        return replace(self, body=json.dumps(body).encode(), headers=headers)

    def once(self) -> Ask:
        """With a fresh key, under which the server does it once, however often it is sent."""
        headers = {**self.headers, "idempotency-key": secrets.token_hex(16)}
        return replace(self, headers=headers, repeatable=True)


class Failure(Exception):
    """A try that failed, and whether another may do better."""

    def __init__(self, error: BelljarError, trouble: Trouble | None = None, pause: float | None = None) -> None:
        super().__init__(str(error))
        self.error, self.trouble, self.pause = error, trouble, pause


class Link:
    """A server, and how it is asked."""

    def __init__(self, transport: Transport, url: str, key: str, patience: Patience | None = None) -> None:
        self.transport = transport
        self.url = url.rstrip("/")
        self.patience = patience or Patience()
        self._headers = {"authorization": f"Bearer {key.strip()}", "belljar-version": API_VERSION}

    async def call(self, ask: Ask) -> Any:
        """Asks, and understands the answer."""
        body = await self.fetch(ask)
        try:
            return json.loads(body) if body else None
        except ValueError as error:
            raise self.protocol(f"an answer to {ask.path} that is none: {error}") from error

    async def fetch(self, ask: Ask, most: int = ANSWER_BYTES_MAX) -> bytes:
        """Asks for a body of at most so many bytes."""
        attempts = self.attempts()
        while True:
            try:
                return await self._body(ask, await self.open(ask), most)
            except Failure as failure:
                await self.pause(attempts, failure)

    async def pages(self, path: str) -> list[dict[str, Any]]:
        """All pages of a list."""
        items: list[dict[str, Any]] = []
        asked = path
        for _ in range(PAGES_MAX):
            page = await self.call(Ask("GET", asked))
            items.extend(page["items"])
            cursor = page.get("next")
            if cursor is None:
                return items
            asked = f"{path}{'&' if '?' in path else '?'}cursor={escape(cursor)}"
        raise self.protocol(f"a list of more than {PAGES_MAX} pages")

    async def open(self, ask: Ask) -> Answer:
        """Sends a request once; the answer is one of success, its body still to come. Raises `Failure`."""
        try:
            answer = await self.transport.open(self._request(ask))
        except Lost as lost:
            raise self._failure(ask, lost) from lost
        if 200 <= answer.status < 300:
            return answer
        body = await self._body(ask, answer, ANSWER_BYTES_MAX)
        raise self._refusal(ask, answer.status, answer.headers, body)

    async def socket(self, ask: Ask) -> Socket:
        """Asks once for a connection that becomes a WebSocket. Raises `Failure`."""
        try:
            return await self.transport.socket(self._request(ask))
        except Lost as lost:
            raise self._failure(ask, lost) from lost
        except Refused as answer:
            raise self._refusal(ask, answer.status, answer.headers, answer.body) from answer

    async def pause(self, attempts: Attempts, failure: Failure) -> None:
        """Waits before the next try, or gives up with what the last one came to."""
        pause = None
        if failure.trouble is not None:
            pause = attempts.after(failure.trouble, failure.pause, time.monotonic())
        if pause is None:
            raise failure.error from failure
        await self.transport.sleep(pause)

    def attempts(self) -> Attempts:
        """A fresh count of tries."""
        return Attempts(self.patience)

    def cut(self, why: str) -> Failure:
        """A connection that broke after the answer began: what was asked for has begun, too."""
        return Failure(self._unreachable(why, "unknown"), Trouble.CONNECTION)

    def protocol(self, what: str) -> ProtocolBroken:
        """The exception for something that cannot be true."""
        return ProtocolBroken(
            f"the server at {self.url} broke the protocol: {what}",
            code="protocol",
            hint="Use a client and a server of the same version, and nothing between them that changes bytes.",
        )

    def lie(self, what: str) -> Failure:
        """The same, as a try that no other can mend."""
        return Failure(self.protocol(what))

    def _request(self, ask: Ask) -> Request:
        return Request(
            ask.method,
            self.url + ask.path,
            headers={**self._headers, **ask.headers},
            body=ask.body,
            within=ask.within or ANSWER_WITHIN,
            stream=ask.stream,
        )

    async def _body(self, ask: Ask, answer: Answer, most: int) -> bytes:
        body = bytearray()
        until = time.monotonic() + (ask.within or ANSWER_WITHIN) + most / SLOWEST_BYTES_PER_SECOND
        try:
            while (chunk := await answer.chunk()) is not None:
                body += chunk
                if len(body) > most:
                    raise self.lie(f"an answer to {ask.path} of more than {most} bytes")
                if time.monotonic() > until:
                    raise self._failure(ask, Lost("the answer took too long"))
        except Lost as lost:
            raise self._failure(ask, lost) from lost
        finally:
            await answer.close()
        return bytes(body)

    def _refusal(self, ask: Ask, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        after = next((value for name, value in headers.items() if name.lower() == "retry-after"), "")
        pause = float(after) if after.isdigit() else None
        try:
            said = json.loads(body)
        except ValueError:
            said = None
        if not isinstance(said, dict) or "code" not in said:
            return self._foreign(ask, status, body, pause)
        return Failure(refused(said), _trouble(status, said), pause)

    def _foreign(self, ask: Ask, status: int, body: bytes, pause: float | None) -> Failure:
        """An answer of something between us and the server, or of another server."""
        if status in (502, 503, 504):
            trouble = Trouble.CONNECTION if ask.may_repeat() else None
            return Failure(self._unreachable(f"it answered {status}", "unknown"), trouble, pause)
        shown = body[:FOREIGN_SHOWN].decode(errors="replace")
        return self.lie(f"{status} to {ask.path} with {shown!r}")

    def _failure(self, ask: Ask, lost: Lost) -> Failure:
        if lost.distrusted:
            error = ConnectionFailed(
                f"the server at {self.url} is not trusted: {lost.why}",
                ran="no",
                hint="Trust the authority that signed its certificate: `ca_file`, or BELLJAR_CA_FILE.",
            )
            return Failure(error)
        again = ask.may_repeat() or not lost.sent
        error = self._unreachable(lost.why, "unknown" if lost.sent else "no")
        return Failure(error, Trouble.CONNECTION if again else None)

    def _unreachable(self, why: str, ran: str) -> ConnectionFailed:
        return ConnectionFailed(
            f"the server at {self.url} does not answer: {why}",
            ran=ran,
            retryable=ran == "no",
            hint=f"See that the server runs, that {self.url} is its address and that nothing is in between.",
        )


class Lines:
    """Lines of JSON out of a body that never ends."""

    def __init__(self, link: Link, answer: Answer) -> None:
        self._link, self._answer = link, answer
        self._buffer = bytearray()
        self._scanned = 0

    @classmethod
    async def open(cls, link: Link, path: str) -> Lines:
        """Asks once for such a stream. Raises `Failure`."""
        ask = Ask("GET", path, headers={"accept": NDJSON}, within=SILENCE_MAX, stream=True)
        return cls(link, await link.open(ask))

    async def next(self) -> dict[str, Any]:
        """The next line. Raises `Failure` when the connection ends or falls silent."""
        while True:
            end = self._buffer.find(b"\n", self._scanned)
            if end >= 0:
                return self._take(end)
            self._scanned = len(self._buffer)
            if self._scanned > LINE_BYTES_MAX:
                raise self._link.lie(f"a line of more than {LINE_BYTES_MAX} bytes")
            try:
                chunk = await self._answer.chunk()
            except Lost as lost:
                raise self._link.cut(lost.why) from lost
            if chunk is None:
                raise self._link.cut("the answer ended before its last line")
            self._buffer += chunk

    def _take(self, end: int) -> dict[str, Any]:
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._scanned = 0
        try:
            said = json.loads(line)
        except ValueError as error:
            raise self._link.lie(f"a line that is none: {error}") from error
        if not isinstance(said, dict):
            raise self._link.lie("a line that is no object")
        return said

    async def close(self) -> None:
        """Leaves the connection."""
        await self._answer.close()


class Endless:
    """Such lines over as many connections as it takes."""

    def __init__(self, link: Link, path: str) -> None:
        self._link, self._path = link, path
        self._attempts = link.attempts()
        self._lines: Lines | None = None
        self.connections = 0
        """How many there were: what was said between two of them is lost."""

    async def next(self) -> dict[str, Any]:
        """The next line."""
        while True:
            try:
                if self._lines is None:
                    self._lines = await Lines.open(self._link, self._path)
                    self.connections += 1
                line = await self._lines.next()
                if line["type"] == "error":
                    raise last_words(line["error"])
            except Failure as failure:
                await self.close()
                await self._link.pause(self._attempts, failure)
                continue
            self._attempts.progress()
            return line

    async def close(self) -> None:
        """Leaves the connection, if there is one."""
        lines, self._lines = self._lines, None
        if lines is not None:
            await lines.close()


def last_words(error: Mapping[str, Any]) -> Failure:
    """A stream that ended with an error: whether another may do better."""
    said = refused(error)
    return Failure(said, Trouble.CONNECTION if said.retryable else None)


def escape(text: str | bytes) -> str:
    """A text as one piece of a path or a query, whatever is in it. A dot as well: two of them would be a step up."""
    return quote(text, safe="").replace(".", "%2E")


def _trouble(status: int, error: Mapping[str, Any]) -> Trouble | None:
    """Whether the server's no is one for now, and of which kind."""
    code = error["code"]
    # A quota is waited for by whoever can free some of it.
    if error.get("retry") != "safe" or code == "quota_exceeded":
        return None
    if code in ("capacity", "rate_limited"):
        return Trouble.BUSY
    return Trouble.CONNECTION if code == "store_unavailable" or status == 503 else None
