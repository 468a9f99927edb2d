"""Tests that streams resume after the server is killed and restarted, and that each byte arrives once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from conftest import Way

import bellglass

COUNT = "i=0; while [ $i -lt {count} ]; do echo line $i; echo $i >&2; i=$((i+1)); [ $((i % 50)) = 0 ] && sleep 0.05; done"


@contextlib.contextmanager
def restarting(way: Way, times: int) -> Iterator[None]:
    """Kill and restart the server `times` times while the test reads a stream."""

    def work() -> None:
        for _ in range(times):
            time.sleep(0.7)
            way.server.restart(after=0.3)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


async def test_output_survives_a_killed_server_and_no_byte_is_lost_or_repeated(own_way: Way) -> None:
    way, count = own_way, 4000
    async with way.sandbox() as sandbox:
        started = await way.do(sandbox.commands.start(COUNT.format(count=count)))
        read = {"stdout": b"", "stderr": b""}
        with restarting(way, 2):
            async for chunk in way.each(started.chunks()):
                assert chunk.offset == len(read[chunk.stream])
                read[chunk.stream] += chunk.data
        assert read["stdout"] == b"".join(b"line %d\n" % number for number in range(count))
        assert read["stderr"] == b"".join(b"%d\n" % number for number in range(count))


async def test_a_blocked_command_goes_on_as_it_is_read_and_nothing_is_dropped(own_way: Way) -> None:
    way = own_way
    async with way.sandbox() as sandbox:
        started = await way.do(sandbox.commands.start("seq 6000000", output="block", output_bytes=65536))
        size = 0
        with restarting(way, 2):
            async for chunk in way.each(started.chunks()):
                size += len(chunk.data)
        assert (size, started.end.stdout_dropped) == (46_888_896, 0)


async def test_a_run_of_code_survives_a_killed_server(own_way: Way) -> None:
    way = own_way
    async with way.sandbox("interpreter") as sandbox:
        code = "import time\nfor i in range(30):\n    print(i, flush=True); time.sleep(0.1)\ni"
        with restarting(way, 1):
            ran = await way.do(sandbox.run_code(code))
        assert (ran.stdout, ran.text) == ("".join(f"{number}\n" for number in range(30)), "29")


async def test_a_terminal_survives_a_killed_server_and_each_key_arrives_once(own_way: Way) -> None:
    way = own_way
    async with way.sandbox() as sandbox:
        # Without echo, only the program's own output is shown.
        terminal = await way.do(sandbox.pty.create(["sh", "-c", "stty -echo; echo on; exec cat"]))
        await way.do(terminal.read_until("on\r\n"))
        shown = ""
        with restarting(way, 2):
            for number in range(60):
                await way.do(terminal.write(f"key {number}\r"))
                if number % 10 == 9:
                    shown += await way.do(terminal.read_until(f"key {number}\r\n"))
                time.sleep(0.03)
        await way.do(terminal.write("last\r\x04"))
        shown += "".join([text async for text in way.each(terminal)])
        assert shown == "".join(f"key {number}\r\n" for number in range(60)) + "last\r\n"
        assert terminal.outcome.code == 0


async def test_a_request_that_is_sent_while_the_server_is_down_is_done_once(own_way: Way) -> None:
    way = own_way
    async with way.sandbox() as sandbox:
        way.server.kill()
        starter = threading.Timer(1.0, way.server.begin)
        starter.start()
        await way.do(sandbox.commands.run("echo x >> once"))
        starter.join()
        assert await way.do(sandbox.files.read("once")) == "x\n"


async def test_patience_ends(own_way: Way) -> None:
    way = own_way
    made = await way.do(way.Sandbox.create(client=way.client))
    way.server.kill()
    client = type(way.client)(way.server.url, way.server.key, patience=bellglass.Patience(connection=1))
    began = time.monotonic()
    try:
        await way.do(way.Sandbox.connect(made.id, client=client))
        raise AssertionError("nobody is there")
    except bellglass.ConnectionFailed:
        assert time.monotonic() - began < 3
    way.server.begin()
    await way.do(made.stop())
