"""Access to the files of a sandbox.

Every operation runs inside the sandbox, as the user that runs the code. Relative paths start at `/workspace`.
"""

from __future__ import annotations

import base64
import builtins
import contextlib
import hashlib
import io
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote_to_bytes

from .errors import Conflict, InvalidRequest, NotFound
from .link import Ask, Endless, Failure, Link, escape
from .outcome import decode
from .pool import STALL_MAX
from .transport import Lost

DISK_BYTES_MAX = 64 << 30
"""Maximum size of a sandbox's disk."""
WHOLE_BYTES_MAX = 8 << 20
"""Maximum size of a single-request upload. Larger files use a resumable upload."""
PIECE_BYTES = 256 << 10
"""Chunk size for reading and sending."""
WORK_WITHIN = STALL_MAX + DISK_BYTES_MAX / (4 << 20)
"""Timeout for an operation on a whole disk, in seconds. A sandbox that processes less than 4 MiB/s is considered broken."""
READ_BYTES_MAX = 1 << 30
"""Default limit for the size of data that is read into memory."""


@dataclass(frozen=True)
class FileInfo:
    """Metadata of a file or directory."""

    path: str
    kind: str
    """`file`, `directory`, `symlink`, `fifo`, `socket`, `device` or `unknown`."""
    size_bytes: int
    mode: int
    uid: int
    gid: int
    modified_at_ms: int
    version: str
    """Version tag, which changes whenever the file is replaced or written to."""
    target: str | None = None
    """Target of a symlink."""
    path_encoded: str | None = None
    """The exact path, percent-encoded, if it is not UTF-8."""


@dataclass(frozen=True)
class FileEvent:
    """A change of a file, or a message about the watch itself."""

    event: str
    """`watching`, `created`, `modified`, `removed` or `overflow`.

    `overflow` means that an unknown number of events was missed, so the files should be listed again.
    """
    path: str | None = None


class AsyncFiles:
    """The files of one sandbox."""

    def __init__(self, link: Link, sandbox: str, *, root: bool = False) -> None:
        self._link = link
        self._sandbox = sandbox
        self._path = f"/v1/sandboxes/{sandbox}/files"
        self._user = "&uid=0" if root else ""

    def as_root(self) -> AsyncFiles:
        """Return the same files, accessed as root of the sandbox.

        Requests fail with `InvalidRequest` if the project of the sandbox does not allow root.
        """
        return AsyncFiles(self._link, self._sandbox, root=True)

    async def read(self, path: str) -> str:
        """Return the content of a file as text.

        Raises:
            UnicodeDecodeError: The file is not UTF-8.
        """
        return (await self.read_bytes(path)).decode()

    async def read_bytes(self, path: str, *, most: int = READ_BYTES_MAX) -> bytes:
        """Return the content of a regular file.

        The transfer is resumed after a disconnect. All bytes belong to one version of the file, and the content is
        verified against the hash of the file.

        Args:
            path: Path of the file.
            most: Maximum size in bytes.

        Raises:
            InvalidRequest: The path is not a regular file, or the file is larger than `most`.
            Conflict: The file was written to while it was read.
        """
        into = io.BytesIO()
        await self._copy_out(path, into, most)
        return into.getvalue()

    async def download(self, path: str, to: str | os.PathLike[str]) -> int:
        """Download a file atomically to a local path and return its size in bytes.

        Raises:
            InvalidRequest: The path is not a regular file.
            Conflict: The file was written to while it was read.
        """
        target = Path(to)
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        try:
            with part.open("wb") as into:
                count = await self._copy_out(path, into, DISK_BYTES_MAX)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        return count

    async def write(
        self, path: str, data: str | bytes | os.PathLike[str] | BinaryIO, *, mode: int | None = None
    ) -> FileInfo:
        """Write a file atomically. Missing parent directories are created.

        Args:
            path: Path of the file.
            data: Text, bytes, or a local file, given as a `Path` or as an open binary file.
            mode: Permission bits.
        """
        if isinstance(data, (str, bytes)):
            source: BinaryIO = io.BytesIO(data.encode() if isinstance(data, str) else data)
        elif isinstance(data, os.PathLike):
            source = open(data, "rb")  # noqa: SIM115 - closed below, and one given by the caller is not
        else:
            source = data
        try:
            return await self._copy_in(path, source, mode)
        finally:
            if source is not data:
                source.close()

    async def list(self, path: str = ".", *, depth: int = 1) -> builtins.list[FileInfo]:
        """List the entries of a directory, sorted by name, including subdirectories down to `depth`."""
        route = self._route("/list", path=path) + f"&depth={depth}&limit=1000"
        return [decode(FileInfo, item) for item in await self._link.pages(route)]

    async def info(self, path: str) -> FileInfo:
        """Return the metadata of a path. Symlinks are not followed."""
        return decode(FileInfo, await self._link.call(Ask("GET", self._route("", path=path))))

    async def exists(self, path: str) -> bool:
        """Return whether a path exists."""
        try:
            await self.info(path)
        except NotFound:
            return False
        return True

    async def remove(self, path: str, *, all: bool = False) -> int:
        """Remove a file or an empty directory. With `all`, remove a directory and its contents.

        Succeeds if the path does not exist. Returns the number of removed entries.
        """
        return await self._counted(Ask("DELETE", self._route("", path=path) + f"&all={_word(all)}"))

    async def make_dir(self, path: str) -> int:
        """Create a directory and its parents. Succeeds if the directory already exists."""
        return await self._counted(Ask("POST", self._route("/make", path=path), repeatable=True))

    async def move(self, source: str, target: str, *, replace: bool = False) -> int:
        """Rename a file or directory.

        The request is sent at most once. If the connection breaks, the raised error has `ran` set to `unknown`.
        """
        return await self._counted(Ask("POST", self._two("/move", source, target, replace)))

    async def copy(self, source: str, target: str, *, replace: bool = False) -> int:
        """Copy a file, or a directory and its contents. The request is sent at most once."""
        return await self._counted(Ask("POST", self._two("/copy", source, target, replace)))

    async def edit(self, path: str, old: str, new: str, *, all: bool = False) -> int:
        """Replace the text `old` in a file with `new` and return the number of replacements.

        `old` must occur exactly once, unless `all` is set. The request is sent at most once.
        """
        ask = Ask("POST", self._route("/edit", path=path)).json({"old": old, "new": new, "all": all})
        return await self._counted(ask)

    async def watch(self, path: str = ".", *, deep: bool = False) -> AsyncIterator[FileEvent]:
        """Watch a file or directory, and yield its changes until the caller stops iterating.

        The first event is `watching`. All changes after this event are reported. Changes during a disconnect are lost; an
        `overflow` event then marks the gap.
        """
        lines = Endless(self._link, self._route("/watch", path=path) + f"&deep={_word(deep)}")
        try:
            while True:
                line = await lines.next()
                if line["type"] == "watching":
                    yield FileEvent("watching" if lines.connections == 1 else "overflow")
                elif line["type"] == "changed":
                    yield decode(FileEvent, line)
        finally:
            await lines.close()

    async def upload_archive(self, path: str, archive: bytes | BinaryIO, *, compression: str = "none") -> Mapping[str, int]:
        """Extract a tar archive into a directory, which is created if needed.

        An archive read from a file object is sent at most once, so after a disconnect the caller has to start again.
        """
        body = archive if isinstance(archive, bytes) else _Pieces(archive, 0)
        ask = Ask("PUT", self._route("/archive", path=path) + f"&compression={compression}", body=body)
        said: Mapping[str, int] = await self._link.call(_patient(ask, repeatable=isinstance(archive, bytes)))
        return said

    async def download_archive(self, path: str, *, compression: str = "none", most: int = READ_BYTES_MAX) -> bytes:
        """Return a directory and its contents as a tar archive.

        The archive is untrusted. Extract it with `tarfile` and `filter="data"`.
        """
        route = self._route("/archive", path=path) + f"&compression={compression}"
        return await self._link.fetch(Ask("GET", route, within=STALL_MAX, stream=True), most)

    async def _copy_out(self, path: str, into: BinaryIO, most: int) -> int:
        info = await self.info(path)
        if info.kind != "file":
            raise InvalidRequest(
                f"{info.path!r} is a {info.kind}, not a file", code="not_regular", layer="user_code", ran="no"
            )
        if info.size_bytes > most:
            raise InvalidRequest(
                f"{info.path!r} has {info.size_bytes} bytes, more than {most}",
                code="too_large",
                layer="user_code",
                ran="no",
                hint="Download it, or read a part of it with a command.",
            )
        whole, attempts, position = hashlib.sha256(), self._link.attempts(), 0
        while position < info.size_bytes:
            try:
                async for chunk in self._rest(path, info, position):
                    into.write(chunk)
                    whole.update(chunk)
                    position += len(chunk)
                    attempts.progress()
            except Failure as failure:
                await self._link.pause(attempts, failure)
        hashed = await self._link.call(Ask("GET", self._route("/hash", path=path), within=WORK_WITHIN))
        if hashed["file"]["version"] != info.version or hashed["sha256"] != whole.hexdigest():
            raise _changed(info)
        return position

    async def _rest(self, path: str, info: FileInfo, position: int) -> AsyncIterator[bytes]:
        """Yield the bytes of this file version from `position` on. Raises `Failure` if the connection breaks."""
        headers = {"if-match": f'"{info.version}"', "range": f"bytes={position}-"}
        ask = Ask("GET", self._route("/content", path=path), headers=headers, within=STALL_MAX, stream=True)
        answer = await self._link.open(ask)
        if answer.status != 206:
            raise self._link.lie(f"status {answer.status} for a request for bytes from {position}")
        try:
            while (chunk := await answer.chunk()) is not None:
                position += len(chunk)
                if position > info.size_bytes:
                    raise self._link.lie("the response has more bytes than the file")
                yield chunk
        except Lost as lost:
            raise self._link.cut(lost.why) from lost
        finally:
            await answer.close()
        if position < info.size_bytes:
            raise self._link.cut(f"the response ended at {position} of {info.size_bytes} bytes")

    async def _copy_in(self, path: str, source: BinaryIO, mode: int | None) -> FileInfo:
        head = source.read(WHOLE_BYTES_MAX + 1)
        if len(head) <= WHOLE_BYTES_MAX:
            digest = base64.b64encode(hashlib.sha256(head).digest()).decode()
            headers = {"content-digest": f"sha-256=:{digest}:"}
            ask = Ask("PUT", self._content(path, mode), body=head, headers=headers)
            return decode(FileInfo, (await self._link.call(_patient(ask)))["file"])
        source.seek(-len(head), os.SEEK_CUR)
        part = f"{path}.{secrets.token_hex(4)}.part"
        try:
            await self._send_part(part, source, mode)
            # The rename is atomic. If the response is lost, the state of the target shows whether it happened.
            await self.move(part, path, replace=True)
        except BaseException:
            with contextlib.suppress(Exception):
                await self.remove(part)
            raise
        return await self.info(path)

    async def _send_part(self, part: str, source: BinaryIO, mode: int | None) -> None:
        """Send a large file under a temporary name, resuming after each disconnect."""
        attempts, begin, offset = self._link.attempts(), source.tell(), 0
        while True:
            source.seek(begin + offset)
            body = _Pieces(source, offset)
            ask = Ask("PUT", self._content(part, mode) + f"&offset={offset}", body=body, stream=True)
            try:
                answer = await self._link.open(_patient(ask))
                await answer.close()
                break
            except Failure as failure:
                await self._link.pause(attempts, failure)
            with contextlib.suppress(NotFound):
                there = (await self.info(part)).size_bytes
                if there > offset:
                    attempts.progress()
                offset = there
        source.seek(begin)
        whole = hashlib.sha256()
        for piece in _Pieces(source, 0):
            whole.update(piece)
        hashed = await self._link.call(Ask("GET", self._route("/hash", path=part), within=WORK_WITHIN))
        if hashed["sha256"] != whole.hexdigest():
            raise self._link.protocol(f"{part} has the wrong checksum")

    async def _counted(self, ask: Ask) -> int:
        said = await self._link.call(_patient(ask, repeatable=ask.repeatable))
        return int(said["count"])

    def _content(self, path: str, mode: int | None) -> str:
        return self._route("/content", path=path) + ("" if mode is None else f"&mode={mode & 0o777:04o}")

    def _two(self, below: str, source: str, target: str, replace: bool) -> str:
        return self._route(below, **{"from": source, "to": target}) + f"&replace={_word(replace)}"

    def _route(self, below: str, **paths: str) -> str:
        query = "&".join(f"{name}={escape(os.fsencode(path))}" for name, path in paths.items())
        return f"{self._path}{below}?{query}{self._user}"


class _Pieces:
    """A request body that streams a file with one chunk in memory at a time."""

    def __init__(self, source: BinaryIO, offset: int) -> None:
        self._source, self.offset = source, offset

    def __iter__(self) -> Iterator[bytes]:
        while piece := self._source.read(PIECE_BYTES):
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


def exact_path(info: FileInfo) -> str:
    """Return the exact path of a file as Python represents it: bytes that are not UTF-8 become surrogate escapes."""
    return info.path if info.path_encoded is None else os.fsdecode(unquote_to_bytes(info.path_encoded))


def _patient(ask: Ask, repeatable: bool | None = None) -> Ask:
    return Ask(ask.method, ask.path, ask.body, ask.headers, WORK_WITHIN, repeatable, ask.stream)


def _changed(info: FileInfo) -> Conflict:
    return Conflict(
        f"{info.path!r} changed while it was read",
        code="conflict",
        layer="user_code",
        ran="no",
        retryable=True,
        hint="Wait until nothing writes to it, or copy it inside the sandbox and read the copy.",
    )


def _word(flag: bool) -> str:
    return "true" if flag else "false"
