"""Tests of commands: output, outcomes, input and signals."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from conftest import Way

import bellglass


async def test_a_command_gives_its_output_and_its_exit_code(way: Way) -> None:
    async with way.sandbox() as sandbox:
        result = await way.do(sandbox.commands.run("echo out; echo err >&2; exit 3"))
        assert (result.stdout, result.stderr, result.exit_code, result.ok) == ("out\n", "err\n", 3, False)
        result = await way.do(sandbox.commands.run(["printf", "%s|", "a b", "$HOME"], env={"X": "1"}, cwd="/tmp"))
        assert result.check().stdout == "a b|$HOME|"


async def test_callbacks_hear_output_as_it_comes(way: Way) -> None:
    async with way.sandbox() as sandbox:
        heard: list[str] = []
        await way.do(sandbox.commands.run("printf 'h\\303'; sleep 0.2; printf '\\251\\n'", on_stdout=heard.append))
        assert "".join(heard) == "hé\n" and len(heard) == 2


async def test_a_deadline_is_an_outcome_and_not_an_exception(way: Way) -> None:
    async with way.sandbox() as sandbox:
        result = await way.do(sandbox.commands.run("echo begun; sleep 60", timeout=0.5))
        assert (result.outcome.kind, result.exit_code, result.stdout) == ("timeout", 124, "begun\n")
        with pytest.raises(bellglass.DeadlineExceeded):
            result.check()


async def test_an_exec_is_read_line_by_line(way: Way) -> None:
    async with way.sandbox() as sandbox:
        started = await way.do(sandbox.commands.start("seq 3; echo no >&2; printf last"))
        lines = [(line.stream, str(line)) async for line in way.each(started)]
        assert [text for stream, text in lines if stream == "stdout"] == ["1", "2", "3", "last"]
        assert ("stderr", "no") in lines
        assert (started.stdout, started.end.outcome.code) == ("1\n2\n3\nlast", 0)


async def test_input_is_written_and_closed(way: Way) -> None:
    async with way.sandbox() as sandbox:
        started = await way.do(sandbox.commands.start(["wc", "-c"], stdin=True))
        await way.do(started.write_stdin("hello "))
        await way.do(started.write_stdin(b"x" * 3_000_000))
        await way.do(started.close_stdin())
        assert (await way.do(started.wait())).stdout == "3000006\n"


async def test_an_exec_is_signalled_killed_listed_and_found_again(way: Way) -> None:
    async with way.sandbox() as sandbox:
        trapped = await way.do(sandbox.commands.start("trap 'echo got; exit 7' USR1; echo on; while :; do sleep 0.1; done"))
        async for line in way.each(trapped):
            if line == "on":
                assert await way.do(trapped.send_signal(signal.SIGUSR1)) >= 1
        assert (trapped.stdout, trapped.end.outcome.exit_code) == ("on\ngot\n", 7)
        sleeper = await way.do(sandbox.commands.start("echo here; sleep 600"))
        again = await way.do(sandbox.commands.connect(sleeper.id))
        await way.do(sleeper.kill())
        result = await way.do(again.wait())
        assert (result.stdout, result.outcome.kind) == ("here\n", "cancelled")
        assert {sleeper.id, trapped.id} <= {one.id for one in await way.do(sandbox.commands.list())}


async def test_an_interrupted_run_is_ended_in_the_sandbox(way: Way) -> None:
    async with way.sandbox() as sandbox:

        def stop(_: str) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await way.do(sandbox.commands.run("echo begun; sleep 600", on_stdout=stop))
        (only,) = await way.do(sandbox.commands.list())
        assert (await way.do((await way.do(sandbox.commands.connect(only.id))).wait())).outcome.kind == "cancelled"


async def test_a_large_output_keeps_both_ends_and_counts_the_middle(way: Way) -> None:
    async with way.sandbox() as sandbox:
        started = await way.do(sandbox.commands.start("seq 100000", output_bytes=8192))
        result = await way.do(started.wait())
        assert result.stdout.startswith("1\n2\n") and result.stdout.endswith("99999\n100000\n")
        assert result.end.stdout_bytes - result.end.stdout_dropped == len(result.stdout) <= 8192


async def test_a_failure_is_an_exception_that_says_what_to_do(way: Way) -> None:
    async with way.sandbox() as sandbox:
        with pytest.raises(bellglass.SpawnFailed) as caught:
            await way.do(sandbox.commands.run(["pyhton3"]))
        error = caught.value
        assert (error.code, error.layer, error.ran, error.retryable) == ("spawn_failed", "user_code", "no", False)
        assert error.hint and str(error) == f"{error.message}\n{error.hint}"
    with pytest.raises(bellglass.SandboxLost):
        await way.do(sandbox.commands.run("true"))


async def test_a_sandbox_that_is_not_there_is_not_found(way: Way) -> None:
    with pytest.raises(bellglass.NotFound):
        await way.do(way.Sandbox.connect("nobody", client=way.client))
    wrong: Any = type(way.client)(way.server.url, "wrong")
    with pytest.raises(bellglass.Unauthorized):
        await way.do(wrong.sandboxes())
