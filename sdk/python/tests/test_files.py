"""Tests that file transfers are complete."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from conftest import SMALL, Way

import bellglass


async def test_what_is_written_is_read(way: Way) -> None:
    async with way.sandbox() as sandbox:
        files = sandbox.files
        info = await way.do(files.write("notes/a b?.txt", "grüße\n", mode=0o600))
        assert (info.path, info.kind, info.mode & 0o777) == ("/workspace/notes/a b?.txt", "file", 0o600)
        assert await way.do(files.read("notes/a b?.txt")) == "grüße\n"
        every = bytes(range(256))
        await way.do(files.write("bytes", every))
        assert await way.do(files.read_bytes("bytes")) == every
        await way.do(files.write("empty", b""))
        assert await way.do(files.read_bytes("empty")) == b""


async def test_files_are_listed_moved_copied_edited_and_removed(way: Way) -> None:
    async with way.sandbox() as sandbox:
        files = sandbox.files
        await way.do(files.make_dir("a/b"))
        await way.do(files.write("a/b/one", "port = 80"))
        assert await way.do(files.edit("a/b/one", "80", "8080")) == 1
        await way.do(files.copy("a/b/one", "two"))
        await way.do(files.move("two", "three"))
        assert await way.do(files.read("three")) == "port = 8080"
        assert [one.path for one in await way.do(files.list("a", depth=2))] == ["/workspace/a/b", "/workspace/a/b/one"]
        assert await way.do(files.exists("a")) and not await way.do(files.exists("two"))
        with pytest.raises(bellglass.BellglassError):
            await way.do(files.remove("a"))
        assert await way.do(files.remove("a", all=True)) == 3
        with pytest.raises(bellglass.NotFound):
            await way.do(files.read("a/b/one"))
        with pytest.raises(bellglass.InvalidRequest, match="is a directory"):
            await way.do(files.read("/workspace"))


async def test_a_listing_has_all_of_its_pages(way: Way) -> None:
    async with way.sandbox(limits={**SMALL, "disk_inodes": 8192}) as sandbox:
        await way.do(sandbox.commands.run("mkdir many; cd many; seq 2500 | xargs touch"))
        assert len(await way.do(sandbox.files.list("many"))) == 2500


async def test_a_large_file_of_this_machine_goes_there_and_back(way: Way, tmp_path: Path) -> None:
    async with way.sandbox() as sandbox:
        here, back = tmp_path / "here", tmp_path / "back"
        here.write_bytes(hashlib.sha256(b"seed").digest() * 500_000)
        info = await way.do(sandbox.files.write("large", here))
        assert info.size_bytes == 16_000_000
        assert await way.do(sandbox.files.download("large", back)) == 16_000_000
        assert here.read_bytes() == back.read_bytes()
        assert [one.path for one in await way.do(sandbox.files.list())] == ["/workspace/large"]
        assert sorted(one.name for one in tmp_path.iterdir()) == ["back", "here"]


async def test_a_directory_travels_as_an_archive(way: Way) -> None:
    async with way.sandbox() as sandbox:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            member = tarfile.TarInfo("src/main.py")
            member.size = 4
            archive.addfile(member, io.BytesIO(b"6*7\n"))
        await way.do(sandbox.files.upload_archive("project", packed.getvalue()))
        assert await way.do(sandbox.files.read("project/src/main.py")) == "6*7\n"
        back = await way.do(sandbox.files.download_archive("project"))
        with tarfile.open(fileobj=io.BytesIO(back)) as archive:
            assert "src/main.py" in "\n".join(archive.getnames())


async def test_a_watch_tells_what_happens(way: Way) -> None:
    async with way.sandbox() as sandbox:
        seen = []
        async for event in way.each(sandbox.files.watch(deep=True)):
            if event.event == "watching":
                await way.do(sandbox.files.write("new", "x"))
            seen.append((event.event, event.path))
            if event.path == "/workspace/new":
                break
        assert seen[-1][0] == "created"
