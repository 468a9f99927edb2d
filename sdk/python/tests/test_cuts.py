"""Tests with repeatedly broken connections: all data arrives completely and only once."""

from __future__ import annotations

import hashlib
from pathlib import Path

from conftest import Way
from cutter import cutting

DATA = b"".join(hashlib.sha256(number.to_bytes(4, "big")).digest() for number in range(500_000))


async def test_a_file_is_read_over_many_connections(way: Way) -> None:
    async with way.sandbox() as sandbox:
        await way.do(sandbox.files.write("large", DATA))
        with cutting(way.server.address, 3_000_000) as cutter:
            client = type(way.client)(cutter.url, way.server.key)
            again = await way.do(way.Sandbox.connect(sandbox.id, client=client))
            assert await way.do(again.files.read_bytes("large")) == DATA
            assert cutter.cuts >= 5


async def test_a_file_is_sent_over_many_connections(way: Way, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.write_bytes(DATA)
    async with way.sandbox() as sandbox:
        with cutting(way.server.address, 3_000_000) as cutter:
            client = type(way.client)(cutter.url, way.server.key)
            again = await way.do(way.Sandbox.connect(sandbox.id, client=client))
            await way.do(again.files.write("large", here))
            assert cutter.cuts >= 5
        said = await way.do(sandbox.commands.run("sha256sum < large; ls"))
        assert said.stdout.split() == [hashlib.sha256(DATA).hexdigest(), "-", "large"]


async def test_a_blocked_command_is_read_over_many_connections_and_nothing_is_dropped(way: Way) -> None:
    async with way.sandbox() as sandbox:
        with cutting(way.server.address, 100_000) as cutter:
            client = type(way.client)(cutter.url, way.server.key)
            again = await way.do(way.Sandbox.connect(sandbox.id, client=client))
            started = await way.do(again.commands.start("seq 200000", output="block", output_bytes=65536))
            read = b"".join([chunk.data async for chunk in way.each(started.chunks())])
            assert read == b"".join(b"%d\n" % number for number in range(1, 200_001))
            assert cutter.cuts >= 5 and started.end.stdout_dropped == 0


async def test_input_is_written_over_many_connections_and_arrives_once(way: Way) -> None:
    async with way.sandbox() as sandbox:
        with cutting(way.server.address, 2_500_000) as cutter:
            client = type(way.client)(cutter.url, way.server.key)
            again = await way.do(way.Sandbox.connect(sandbox.id, client=client))
            started = await way.do(again.commands.start("sha256sum", stdin=True))
            await way.do(started.write_stdin(DATA))
            await way.do(started.close_stdin())
            assert (await way.do(started.wait())).stdout.split()[0] == hashlib.sha256(DATA).hexdigest()
            assert cutter.cuts >= 3


async def test_a_terminal_is_typed_at_and_read_over_many_connections(way: Way) -> None:
    async with way.sandbox() as sandbox:
        with cutting(way.server.address, 200_000) as cutter:
            client = type(way.client)(cutter.url, way.server.key)
            again = await way.do(way.Sandbox.connect(sandbox.id, client=client))
            terminal = await way.do(again.pty.create(["sh", "-c", "stty raw -echo; echo on; head -c 600000"]))
            await way.do(terminal.read_until("on"))
            typed = DATA[:300_000].hex()
            await way.do(terminal.write(typed))
            shown = "".join([text async for text in way.each(terminal)])
            assert shown.strip() == typed and cutter.cuts >= 3
