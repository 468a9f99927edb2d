"""Tests of terminals: type, read, resize, detach and reattach."""

from __future__ import annotations

import hashlib
import threading

from conftest import Server, Way

import bellglass


async def test_what_is_typed_runs_and_is_shown(way: Way) -> None:
    async with way.sandbox() as sandbox:
        terminal = await way.do(sandbox.pty.create(["sh"], cols=100, rows=30))
        await way.do(terminal.write("stty size; echo $TERM\r"))
        assert "30 100" in await way.do(terminal.read_until("xterm-256color\r\n"))
        await way.do(terminal.resize(90, 20))
        await way.do(terminal.write("stty size\r"))
        assert "20 90" in await way.do(terminal.read_until("20 90"))
        await way.do(terminal.write("exit 7\r"))
        assert (await way.do(terminal.wait())).outcome.code == 7


async def test_a_terminal_that_was_left_is_found_again_with_what_it_showed(way: Way) -> None:
    async with way.sandbox() as sandbox:
        terminal = await way.do(sandbox.pty.create(["sh"]))
        await way.do(terminal.write("echo be''fore\r"))
        await way.do(terminal.read_until("before\r\n"))
        await way.do(terminal.leave())
        again = await way.do(sandbox.pty.connect(terminal.id))
        assert "before" in await way.do(again.read_until("before\r\n"))
        await way.do(again.write("echo af''ter; exit\r"))
        assert "after" in "".join([text async for text in way.each(again)])


async def test_a_long_paste_arrives_whole_while_it_is_read(way: Way) -> None:
    async with way.sandbox() as sandbox:
        terminal = await way.do(sandbox.pty.create(["sh", "-c", "stty raw -echo; echo on; head -c 300000 | sha256sum"]))
        await way.do(terminal.read_until("on"))
        await way.do(terminal.write(b"0123456789" * 30_000))
        shown = "".join([text async for text in way.each(terminal)])
        assert hashlib.sha256(b"0123456789" * 30_000).hexdigest() in shown


def test_one_thread_types_while_another_reads(server: Server) -> None:
    way = Way(True, server)
    with bellglass.Sandbox.create(client=way.client) as sandbox:
        terminal = sandbox.pty.create(["cat"])
        typing = threading.Thread(target=lambda: [terminal.write(f"{number}\r") for number in range(300)])
        typing.start()
        # Each line arrives twice, from the terminal and from `cat`, in any order with the others.
        seen = ""
        while seen.count("299\r\n") < 2:
            more = terminal.read_until("\n")
            assert more, seen
            seen += more
        typing.join()
        terminal.kill()
        assert terminal.wait().outcome.kind == "cancelled"
