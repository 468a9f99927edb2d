"""Send requests, and retry them over new connections if necessary.

A request is retried if it failed before anything was sent, or if repeating it is harmless, because it only reads, because
it replaces something, or because it has an idempotency key. If any other request fails after it was sent, the error has
`ran` set to `unknown`.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from .errors import BellglassError, ConnectionFailed, ProtocolBroken, refused
from .patience import Attempts, Patience, Trouble
from .transport import Answer, Body, Lost, Refused, Request, Socket, Transport

ANSWER_WITHIN = 60.0
"""Default response timeout, in seconds. The slowest requests start or stop a sandbox on a busy machine."""
SILENCE_MAX = 15.0
"""Timeout for a silent stream, in seconds: three missed heartbeats."""
ANSWER_BYTES_MAX = 16 << 20
"""Maximum size of a JSON response."""
LINE_BYTES_MAX = 8 << 20
"""Maximum length of a line in a stream."""
PAGES_MAX = 10_000
"""Maximum number of pages in a list. More pages mean that the server's pagination loops."""
NDJSON = "application/x-ndjson"
API_VERSION = "1"
SLOWEST_BYTES_PER_SECOND = 64 << 10
"""Minimum transfer rate of a usable connection. The timeout of a large response is extended accordingly."""
FOREIGN_SHOWN = 200
"""Length of the quoted part of an unrecognized response, in bytes."""


@dataclass(frozen=True)
class Ask:
    """A request, and whether it may be retried."""

    method: str
    path: str
    body: bytes | Body = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    within: float | None = None
    repeatable: bool | None = None
    stream: bool = False

    def may_repeat(self) -> bool:
        """Return whether the request can safely be sent again."""
        return self.method != "POST" if self.repeatable is None else self.repeatable

    def json(self, body: object) -> Ask:
        """Return a copy with this JSON body."""
        headers = {**self.headers, "content-type": "application/json"}
        return replace(self, body=json.dumps(body).encode(), headers=headers)

    def once(self) -> Ask:
        """Return a copy with a new idempotency key, so that the server executes the request once even if it is resent."""
        headers = {**self.headers, "idempotency-key": secrets.token_hex(16)}
        return replace(self, headers=headers, repeatable=True)


class Failure(Exception):
    """A failed attempt, and whether to retry."""

    def __init__(self, error: BellglassError, trouble: Trouble | None = None, pause: float | None = None) -> None:
        super().__init__(str(error))
        self.error, self.trouble, self.pause = error, trouble, pause


class Link:
    """The address of a server, with the credentials and the retry policy for its requests."""

    def __init__(self, transport: Transport, url: str, key: str, patience: Patience | None = None) -> None:
        self.transport = transport
        self.url = url.rstrip("/")
        self.patience = patience or Patience()
        self._headers = {"authorization": f"Bearer {key.strip()}", "bellglass-version": API_VERSION}

    async def call(self, ask: Ask) -> Any:
        """Send a request and decode the JSON response."""
        body = await self.fetch(ask)
        try:
            return json.loads(body) if body else None
        except ValueError as error:
            raise self.protocol(f"the response to {ask.path} is not valid JSON: {error}") from error

    async def fetch(self, ask: Ask, most: int = ANSWER_BYTES_MAX) -> bytes:
        """Send a request and return the response body of at most `most` bytes."""
        attempts = self.attempts()
        while True:
            try:
                return await self._body(ask, await self.open(ask), most)
            except Failure as failure:
                await self.pause(attempts, failure)

    async def pages(self, path: str) -> list[dict[str, Any]]:
        """Fetch all pages of a list."""
        items: list[dict[str, Any]] = []
        asked = path
        for _ in range(PAGES_MAX):
            page = await self.call(Ask("GET", asked))
            items.extend(page["items"])
            cursor = page.get("next")
            if cursor is None:
                return items
            asked = f"{path}{'&' if '?' in path else '?'}cursor={escape(cursor)}"
        raise self.protocol(f"the list has more than {PAGES_MAX} pages")

    async def open(self, ask: Ask) -> Answer:
        """Send a request once and return the response with its body unread. Raises `Failure` if the request fails."""
        try:
            answer = await self.transport.open(self._request(ask))
        except Lost as lost:
            raise self._failure(ask, lost) from lost
        if 200 <= answer.status < 300:
            return answer
        body = await self._body(ask, answer, ANSWER_BYTES_MAX)
        raise self._refusal(ask, answer.status, answer.headers, body)

    async def socket(self, ask: Ask) -> Socket:
        """Open a WebSocket without retries. Raises `Failure` if it cannot be opened."""
        try:
            return await self.transport.socket(self._request(ask))
        except Lost as lost:
            raise self._failure(ask, lost) from lost
        except Refused as answer:
            raise self._refusal(ask, answer.status, answer.headers, answer.body) from answer

    async def pause(self, attempts: Attempts, failure: Failure) -> None:
        """Wait before the next attempt. If no attempts are left, raise the error of the last attempt."""
        pause = None
        if failure.trouble is not None:
            pause = attempts.after(failure.trouble, failure.pause, time.monotonic())
        if pause is None:
            raise failure.error from failure
        await self.transport.sleep(pause)

    def attempts(self) -> Attempts:
        """Return a new retry counter."""
        return Attempts(self.patience)

    def cut(self, why: str) -> Failure:
        """Return a `Failure` for a connection that broke during the response. The operation may have taken effect."""
        return Failure(self._unreachable(why, "unknown"), Trouble.CONNECTION)

    def protocol(self, what: str) -> ProtocolBroken:
        """Return an exception that reports a protocol violation."""
        return ProtocolBroken(
            f"the server at {self.url} violated the protocol: {what}",
            code="protocol",
            hint="Use the same version of client and server, and no proxy that changes bytes.",
        )

    def lie(self, what: str) -> Failure:
        """Return a `Failure` that reports a protocol violation. The request is not retried."""
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
                    raise self.lie(f"the response to {ask.path} has more than {most} bytes")
                if time.monotonic() > until:
                    raise self._failure(ask, Lost("the response took too long"))
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
        """Return a `Failure` for a response that came from a proxy or from a server that is not Bellglass."""
        if status in (502, 503, 504):
            trouble = Trouble.CONNECTION if ask.may_repeat() else None
            return Failure(self._unreachable(f"it returned {status}", "unknown"), trouble, pause)
        shown = body[:FOREIGN_SHOWN].decode(errors="replace")
        return self.lie(f"status {status} for {ask.path} with body {shown!r}")

    def _failure(self, ask: Ask, lost: Lost) -> Failure:
        if lost.distrusted:
            error = ConnectionFailed(
                f"the server at {self.url} is not trusted: {lost.why}",
                ran="no",
                hint="Trust the authority that signed its certificate: `ca_file`, or BELLGLASS_CA_FILE.",
            )
            return Failure(error)
        again = ask.may_repeat() or not lost.sent
        error = self._unreachable(lost.why, "unknown" if lost.sent else "no")
        return Failure(error, Trouble.CONNECTION if again else None)

    def _unreachable(self, why: str, ran: str) -> ConnectionFailed:
        return ConnectionFailed(
            f"the server at {self.url} does not respond: {why}",
            ran=ran,
            retryable=ran == "no",
            hint=f"Check that the server is running, that {self.url} is its URL, and that nothing blocks the connection.",
        )


class Lines:
    """JSON lines from a streaming response body."""

    def __init__(self, link: Link, answer: Answer) -> None:
        self._link, self._answer = link, answer
        self._buffer = bytearray()
        self._scanned = 0

    @classmethod
    async def open(cls, link: Link, path: str) -> Lines:
        """Open a stream of JSON lines without retries. Raises `Failure` if it cannot be opened."""
        ask = Ask("GET", path, headers={"accept": NDJSON}, within=SILENCE_MAX, stream=True)
        return cls(link, await link.open(ask))

    async def next(self) -> dict[str, Any]:
        """Return the next line. Raises `Failure` when the connection ends or falls silent."""
        while True:
            end = self._buffer.find(b"\n", self._scanned)
            if end >= 0:
                return self._take(end)
            self._scanned = len(self._buffer)
            if self._scanned > LINE_BYTES_MAX:
                raise self._link.lie(f"a line has more than {LINE_BYTES_MAX} bytes")
            try:
                chunk = await self._answer.chunk()
            except Lost as lost:
                raise self._link.cut(lost.why) from lost
            if chunk is None:
                raise self._link.cut("the response ended before its last line")
            self._buffer += chunk

    def _take(self, end: int) -> dict[str, Any]:
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._scanned = 0
        try:
            said = json.loads(line)
        except ValueError as error:
            raise self._link.lie(f"a line is not valid JSON: {error}") from error
        if not isinstance(said, dict):
            raise self._link.lie("a line is not a JSON object")
        return said

    async def close(self) -> None:
        """Close the connection."""
        await self._answer.close()


class Endless:
    """JSON lines from a stream without an end, with a reconnect after each failure."""

    def __init__(self, link: Link, path: str) -> None:
        self._link, self._path = link, path
        self._attempts = link.attempts()
        self._lines: Lines | None = None
        self.connections = 0
        """Number of connections so far. Lines sent between two connections are lost."""

    async def next(self) -> dict[str, Any]:
        """Return the next line, over a new connection if necessary."""
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
        """Close the connection, if any."""
        lines, self._lines = self._lines, None
        if lines is not None:
            await lines.close()


def last_words(error: Mapping[str, Any]) -> Failure:
    """Convert the error line that ended a stream to a `Failure`, which states whether to retry."""
    said = refused(error)
    return Failure(said, Trouble.CONNECTION if said.retryable else None)


def escape(text: str | bytes) -> str:
    """Escape a text as one segment of a path or a query. Dots are escaped too, because `..` is the parent directory."""
    return quote(text, safe="").replace(".", "%2E")


def _trouble(status: int, error: Mapping[str, Any]) -> Trouble | None:
    """Return why a rejected request should be retried, or `None` if it should not."""
    code = error["code"]
    # Exceeding a quota is not retried: the caller decides what to free.
    if error.get("retry") != "safe" or code == "quota_exceeded":
        return None
    if code in ("capacity", "rate_limited"):
        return Trouble.BUSY
    return Trouble.CONNECTION if code == "store_unavailable" or status == 503 else None
