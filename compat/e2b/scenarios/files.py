"""Files: written, read, listed, watched, and fetched by address."""

from __future__ import annotations

import hashlib
import io
import os
import time
from typing import Any

import e2b
import httpx
from scenario import Stage, now, scenario

LARGE_BYTES = 20 << 20
ODD = "a b/größe & \"co\"/日本 #1?.txt"


def kind(entry: Any) -> str | None:
    """Of an entry, as a text."""
    return entry.type.value if entry.type is not None else None


@scenario()
async def files_text(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    info = await now(sandbox.files.write("deep/er/note.txt", "Grüße\n"))
    assert (info.path, info.name, kind(info)) == ("/home/user/deep/er/note.txt", "note.txt", "file"), info
    assert await now(sandbox.files.read("/home/user/deep/er/note.txt")) == "Grüße\n"
    await now(sandbox.files.write("deep/er/note.txt", "less"))
    assert (await now(sandbox.commands.run("cat deep/er/note.txt; stat -c %U deep/er/note.txt"))).stdout == "lessuser\n"
    await now(sandbox.files.write("empty", ""))
    assert await now(sandbox.files.read("empty")) == ""


@scenario()
async def files_bytes_and_streams(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    data = bytes(range(256)) * 5
    await now(sandbox.files.write("data", data))
    read = await now(sandbox.files.read("data", format="bytes"))
    assert bytes(read) == data
    await now(sandbox.files.write("stream", io.BytesIO(data)))
    stream = await now(sandbox.files.read("stream", format="stream"))
    parts = [bytes(part) async for part in stream] if stage.asynchronous else [bytes(part) for part in stream]
    assert b"".join(parts) == data


@scenario()
async def files_large_ones_stay_whole(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    data = os.urandom(LARGE_BYTES)
    await now(sandbox.files.write("large", data, request_timeout=120))
    digest = hashlib.sha256(data).hexdigest()
    assert (await now(sandbox.commands.run("sha256sum < large"))).stdout.split()[0] == digest
    read = await now(sandbox.files.read("large", format="bytes", request_timeout=120))
    assert hashlib.sha256(read).hexdigest() == digest
    await now(sandbox.files.write("packed", data, gzip=True, request_timeout=120))
    assert (await now(sandbox.commands.run("sha256sum < packed"))).stdout.split()[0] == digest
    assert hashlib.sha256(await now(sandbox.files.read("packed", format="bytes", gzip=True))).hexdigest() == digest


@scenario()
async def files_in_one_go(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    entries = [{"path": "one", "data": "1"}, {"path": "/tmp/two/2", "data": b"\x00\xff"}, {"path": "three", "data": io.BytesIO(b"3")}]
    written = await now(sandbox.files.write_files(entries))
    assert [one.path for one in written] == ["/home/user/one", "/tmp/two/2", "/home/user/three"], written
    assert await now(sandbox.files.read("one")) == "1"
    assert bytes(await now(sandbox.files.read("/tmp/two/2", format="bytes"))) == b"\x00\xff"
    assert await now(sandbox.files.write_files([])) == []


@scenario()
async def files_names_may_be_odd(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    info = await now(sandbox.files.write(ODD, "odd"))
    assert info.path == f"/home/user/{ODD}", info
    assert await now(sandbox.files.read(ODD)) == "odd"
    directory, _, name = ODD.rpartition("/")
    assert [one.name for one in await now(sandbox.files.list(directory))] == [name]
    await now(sandbox.files.rename(ODD, "b c"))
    assert await now(sandbox.files.exists("b c")) and not await now(sandbox.files.exists(ODD))


@scenario()
async def files_list_to_a_depth(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    await now(sandbox.files.write_files([{"path": path, "data": "x"} for path in ("t/a", "t/b/c", "t/b/d/e")]))

    async def listed(**options: Any) -> list[tuple[str, str | None]]:
        return sorted((one.path.removeprefix("/home/user/t/"), kind(one)) for one in await now(sandbox.files.list("t", **options)))

    assert await listed() == [("a", "file"), ("b", "dir")]
    assert await listed(depth=2) == [("a", "file"), ("b", "dir"), ("b/c", "file"), ("b/d", "dir")]
    assert len(await listed(depth=3)) == 5
    with stage.raises(e2b.InvalidArgumentException):
        await now(sandbox.files.list("t", depth=0))
    with stage.raises(e2b.InvalidArgumentException):
        await now(sandbox.files.list("t/a"))


@scenario()
async def files_get_info_tells_all(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    await now(sandbox.files.write("note", "12345"))
    await now(sandbox.commands.run("chmod 640 note; ln -s note link; mkdir dir"))
    info = await now(sandbox.files.get_info("note"))
    assert (info.name, info.path, kind(info), info.size) == ("note", "/home/user/note", "file", 5), info
    assert (info.mode & 0o777, info.permissions) == (0o640, "-rw-r-----"), info
    assert (info.owner, info.group) == ("user", "user"), info
    assert abs(info.modified_time.timestamp() - time.time()) < 300, info
    link = await now(sandbox.files.get_info("link"))
    assert link.symlink_target.endswith("note"), link
    assert kind(await now(sandbox.files.get_info("dir"))) == "dir"


@scenario()
async def files_make_rename_remove(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    files = sandbox.files
    assert await now(files.make_dir("one/two")) is True
    assert await now(files.make_dir("one/two")) is False
    await now(files.write("one/two/note", "x"))
    moved = await now(files.rename("one/two", "three/four"))
    assert (moved.path, kind(moved)) == ("/home/user/three/four", "dir"), moved
    assert await now(files.exists("three/four/note")) and not await now(files.exists("one/two"))
    await now(files.remove("three"))
    assert await now(files.exists("three")) is False


@scenario()
async def files_that_are_not_there(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    missing = getattr(e2b, "FileNotFoundException", e2b.NotFoundException)
    for call in (
        lambda: sandbox.files.read("nothing"),
        lambda: sandbox.files.read("nothing", format="stream"),
        lambda: sandbox.files.get_info("nothing"),
        lambda: sandbox.files.list("nothing"),
        lambda: sandbox.files.rename("nothing", "else"),
    ):
        with stage.raises(missing) as caught:
            await now(call())
        assert "nothing" in caught.text, caught.text
    with stage.raises(e2b.InvalidArgumentException):
        await now(sandbox.files.read("/tmp"))


@scenario()
async def files_carry_metadata_or_say_that_they_do_not(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    try:
        info = await now(sandbox.files.write("note", "x", metadata={"author": "ann"}))
    except e2b.SandboxException as refused:
        assert "metadata" in str(refused), refused
        assert not await now(sandbox.files.exists("note"))
        for method in ("files.write", "files.write_files"):
            stage.differs(method, "`metadata` is refused")
        return
    assert info.metadata == {"author": "ann"}, info
    assert (await now(sandbox.files.get_info("note"))).metadata == {"author": "ann"}


async def watched(stage: Stage, sandbox: Any, path: str, act: str, wanted: set[tuple[str, str]], **options: Any) -> list[Any]:
    """The events of what a command does in a directory, until all that are wanted have come."""
    seen: list[Any] = []
    call = {"on_event": seen.append} if stage.asynchronous else {}
    handle = await now(sandbox.files.watch_dir(path, **call, **options))
    await now(sandbox.commands.run(act))

    async def all_seen() -> bool:
        if not stage.asynchronous:
            seen.extend(handle.get_new_events())
        return wanted <= {(one.type.value, one.name) for one in seen}

    try:
        await stage.until(all_seen)
    except AssertionError as late:
        raise AssertionError(f"{late}; of {wanted} there came {seen}") from None
    await now(handle.stop())
    return seen


@scenario()
async def files_watch(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    await now(sandbox.files.make_dir("w/sub"))
    act = "cd w && echo x > a && chmod 600 a && mv a b && rm b && echo y > sub/deep"
    wanted = {("create", "a"), ("write", "a"), ("create", "b"), ("remove", "b")}
    seen = await watched(stage, sandbox, "w", act, wanted)
    told = {(one.type.value, one.name) for one in seen}
    if ("rename", "a") not in told:
        assert ("remove", "a") in told, seen
        stage.differs("files.watch_dir", "a rename is reported as a removal and a creation, a permission change as a write")
    assert not [one for one in seen if one.name.startswith("sub/")], seen
    with stage.raises(getattr(e2b, "FileNotFoundException", e2b.NotFoundException)):
        await watched(stage, sandbox, "nothing", "true", set())


@scenario()
async def files_watch_names_no_temporary_file(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    await now(sandbox.files.make_dir("w"))
    seen: list[Any] = []
    call = {"on_event": seen.append} if stage.asynchronous else {}
    handle = await now(sandbox.files.watch_dir("w", **call))
    await now(sandbox.files.write("w/a", "one"))
    await now(sandbox.files.write("w/a", "two"))
    await now(sandbox.files.write("w/last", ""))

    async def told() -> bool:
        if not stage.asynchronous:
            seen.extend(handle.get_new_events())
        return "last" in {one.name for one in seen}

    await stage.until(told)
    assert {one.name for one in seen} == {"a", "last"}, seen
    await now(handle.stop())


@scenario()
async def files_watch_below(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    await now(sandbox.files.make_dir("w/sub"))
    # The directory is new: what is written there at once may come before anybody watches it.
    act = "cd w && echo x > sub/a && mkdir sub/new && sleep 1 && echo y > sub/new/b"
    wanted = {("create", "sub/a"), ("write", "sub/a"), ("create", "sub/new"), ("write", "sub/new/b")}
    await watched(stage, sandbox, "w", act, wanted, recursive=True)


@scenario()
async def files_by_signed_address(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    await now(sandbox.files.write("a b.txt", "by address"))
    for url in (sandbox.download_url("a b.txt"), sandbox.download_url("/home/user/a b.txt", use_signature_expiration=60)):
        got = httpx.get(url)
        assert (got.status_code, got.text) == (200, "by address"), (url, got.text)
    for url in (sandbox.upload_url("up/one.txt"), sandbox.upload_url("up/two.txt", user="user", use_signature_expiration=60)):
        put = httpx.post(url, files={"file": ("ignored", b"uploaded")})
        assert put.status_code == 200, (url, put.text)
    assert await now(sandbox.files.read("up/one.txt")) == await now(sandbox.files.read("up/two.txt")) == "uploaded"


@scenario()
async def files_by_address_need_the_signature(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    await now(sandbox.files.write("note", "secret"))
    signed = httpx.URL(sandbox.download_url("note"))
    unsigned = signed.copy_with(params={"path": "note"})
    other = signed.copy_set_param("path", "other")
    # An upload needs a signature of its own.
    for url, method in ((unsigned, "GET"), (other, "GET"), (signed, "POST")):
        refused = httpx.request(method, url, **({"files": {"file": b"x"}} if method == "POST" else {}))
        assert 400 <= refused.status_code < 500, (url, refused.status_code, refused.text)
        assert "secret" not in refused.text
    late = sandbox.download_url("note", use_signature_expiration=1)
    await stage.pause(2.5)
    assert httpx.get(late).status_code in (401, 403)
