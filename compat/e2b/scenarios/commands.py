"""Commands: what they print, how they end, and how they are spoken to."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import e2b
from scenario import Stage, now, scenario

LARGE_BYTES = 10_000_000


async def processes(sandbox: Any, pattern: str) -> int:
    """How many processes have such a command line; `pattern` must not find itself: `[s]leep`."""
    look = f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o '{pattern}' | wc -l"
    return int((await now(sandbox.commands.run(look))).stdout)


@scenario()
async def commands_foreground(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    out: list[str] = []
    err: list[str] = []
    ran = await now(sandbox.commands.run("echo one; echo two >&2; echo three", on_stdout=out.append, on_stderr=err.append))
    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "one\nthree\n", "two\n"), ran
    assert not ran.error, ran
    assert ("".join(out), "".join(err)) == ("one\nthree\n", "two\n")


@scenario()
async def commands_output_comes_while_they_run(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    seen: list[str] = []

    def answer(text: str) -> None:
        seen.append(text)

    # The second line is printed only after the file is there, which is made when the first has been heard.
    command = "echo ready; until [ -e go ]; do sleep 0.05; done; echo gone"
    handle = await now(sandbox.commands.run(command, background=True, **({"on_stdout": answer} if stage.asynchronous else {})))
    if stage.asynchronous:
        await stage.until(lambda: "".join(seen) == "ready\n")
    else:
        seen.append(next(out for out, _, _ in handle if out))
    await now(sandbox.files.write("go", ""))
    assert (await now(handle.wait())).stdout == "ready\ngone\n"


@scenario()
async def commands_that_fail_raise(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    with stage.raises(e2b.CommandExitException) as caught:
        await now(sandbox.commands.run("echo out; echo err >&2; exit 3"))
    error = caught.error
    assert (error.exit_code, error.stdout, error.stderr) == (3, "out\n", "err\n"), error
    with stage.raises(e2b.CommandExitException) as caught:
        await now(sandbox.commands.run("no-such-command"))
    assert caught.error.exit_code == 127 and "not found" in caught.error.stderr, caught.error


@scenario()
async def commands_background_and_wait(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    handle = await now(sandbox.commands.run("for n in 1 2 3; do echo $n; sleep 0.1; done", background=True))
    assert handle.pid > 0
    ran = await now(handle.wait())
    assert (ran.exit_code, ran.stdout) == (0, "1\n2\n3\n"), ran


@scenario()
async def commands_stdin(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    handle = await now(sandbox.commands.run("read line; echo got $line; cat", background=True, stdin=True))
    await now(sandbox.commands.send_stdin(handle.pid, "one\n"))
    if hasattr(handle, "send_stdin"):
        await now(handle.send_stdin("two ü\n"))
        await now(handle.send_stdin(b"three\n"))
        await now(handle.close_stdin())
    else:
        await now(sandbox.commands.send_stdin(handle.pid, "two ü\nthree\n"))
        await now(sandbox.commands.close_stdin(handle.pid))
    assert (await now(handle.wait())).stdout == "got one\ntwo ü\nthree\n"


@scenario()
async def commands_stdin_is_closed_by_pid(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    handle = await now(sandbox.commands.run("cat; echo end", background=True, stdin=True))
    await now(sandbox.commands.close_stdin(handle.pid))
    assert (await now(handle.wait())).stdout == "end\n"
    # Unless it is asked for there is none, and a reader sees its end.
    assert (await now(sandbox.commands.run("cat; echo end"))).stdout == "end\n"


@scenario()
async def commands_stream_input(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    if not hasattr(sandbox.commands, "stream_input"):
        return
    handle = await now(sandbox.commands.run("cat", background=True, stdin=True))
    if stage.asynchronous:
        stream = sandbox.commands.stream_input(handle.pid)
        await stream.send("one ")
        await stream.send(b"two ")
        await stream.close()
    else:
        sandbox.commands.stream_input(handle.pid, iter(["one ", b"two "]))
    await now(sandbox.commands.close_stdin(handle.pid))
    assert (await now(handle.wait())).stdout == "one two "


@scenario()
async def commands_kill(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    handle = await now(sandbox.commands.run("sleep 71", background=True))
    assert await now(handle.kill()) is True
    with stage.raises(e2b.CommandExitException) as caught:
        await now(handle.wait())
    assert caught.error.exit_code != 0, caught.error

    async def gone() -> bool:
        return await now(sandbox.commands.kill(handle.pid)) is False

    await stage.until(gone)
    other = await now(sandbox.commands.run("sleep 72", background=True))
    assert await now(sandbox.commands.kill(other.pid)) is True
    assert await now(sandbox.commands.kill(1_000_000)) is False


@scenario()
async def commands_connect(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    loop = "until [ -e go ]; do sleep 0.05; done; echo went; exit 5"
    handle = await now(sandbox.commands.run(loop, background=True))
    other = await now(stage.Sandbox.connect(sandbox.sandbox_id))
    again = await now(other.commands.connect(handle.pid))
    assert again.pid == handle.pid
    await now(other.files.write("go", ""))
    for one in (again, handle):
        with stage.raises(e2b.CommandExitException) as caught:
            await now(one.wait())
        assert (caught.error.exit_code, caught.error.stdout) == (5, "went\n"), caught.error
    with stage.raises(e2b.NotFoundException):
        await now(other.commands.connect(1_000_000))


@scenario()
async def commands_list(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    handle = await now(sandbox.commands.run("sleep 73", background=True, cwd="/tmp", envs={"A": "b"}))
    (found,) = [one for one in await now(sandbox.commands.list()) if one.pid == handle.pid]
    assert (found.cmd, found.args) == ("/bin/bash", ["-l", "-c", "sleep 73"]), found
    assert (found.cwd, found.envs) == ("/tmp", {"A": "b"}), found
    await now(handle.kill())

    async def gone() -> bool:
        return handle.pid not in [one.pid for one in await now(sandbox.commands.list())]

    await stage.until(gone)


@scenario()
async def commands_timeout(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    with stage.raises(e2b.TimeoutException):
        await now(sandbox.commands.run("sleep 77; true", timeout=2))

    async def gone() -> bool:
        return await processes(sandbox, "[s]leep 77") == 0

    await stage.until(gone)
    assert await now(sandbox.is_running())


@scenario()
async def commands_envs_and_cwd(stage: Stage) -> None:
    sandbox = await stage.sandbox(envs={"BOTH": "sandbox", "ONE": "sandbox"})
    ran = await now(sandbox.commands.run('echo "$ONE $BOTH"; pwd', envs={"BOTH": "a 'quoted' $value"}, cwd="/tmp"))
    assert ran.stdout == "sandbox a 'quoted' $value\n/tmp\n", ran
    await now(sandbox.files.make_dir("below/it"))
    assert (await now(sandbox.commands.run("pwd", cwd="below/it"))).stdout == "/home/user/below/it\n"
    with stage.raises(e2b.InvalidArgumentException) as caught:
        await now(sandbox.commands.run("pwd", cwd="/no/such/place"))
    assert "/no/such/place" in caught.text, caught.text


@scenario()
async def commands_user(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    assert (await now(sandbox.commands.run("whoami", user="user"))).stdout == "user\n"
    # An authentication error is of no other kind of the SDK's.
    with stage.raises(e2b.SandboxException, e2b.AuthenticationException) as caught:
        await now(sandbox.commands.run("whoami", user="root"))
    assert "root" in caught.text and "user" in caught.text.replace("root", ""), caught.text
    rooted = await stage.sandbox(api_key=os.environ["ROOT_KEY"])
    ran = await now(rooted.commands.run("id -un; echo $HOME; pwd; echo x > /etc/own && stat -c %U /etc/own", user="root"))
    assert ran.stdout == "root\n/root\n/root\nroot\n", ran
    assert (await now(rooted.commands.run("id -un"))).stdout == "user\n"
    await now(rooted.files.write("/etc/note", "of root", user="root"))
    assert await now(rooted.files.read("/etc/note", user="root")) == "of root"
    assert (await now(rooted.commands.run("stat -c %U /etc/note"))).stdout == "root\n"
    with stage.raises(e2b.SandboxException):
        await now(rooted.files.write("/etc/note", "of user"))
    for name in ("commands.run", "pty.create"):
        stage.differs(name, "the user `root` is available only if the project is allowed root")


@scenario()
async def commands_large_output(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    size = 0

    def count(text: str) -> None:
        nonlocal size
        size += len(text)

    ran = await now(sandbox.commands.run(f"seq 1 2000000 | head -c {LARGE_BYTES} | tee out", on_stdout=count))
    assert len(ran.stdout) == size == LARGE_BYTES
    inside = (await now(sandbox.commands.run("sha256sum < out"))).stdout.split()[0]
    assert hashlib.sha256(ran.stdout.encode()).hexdigest() == inside


@scenario()
async def commands_output_that_is_no_text(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    ran = await now(sandbox.commands.run(r"printf 'a\xff\xfeb'; printf '\xc3'; sleep 0.3; printf '\xa9'"))
    assert ran.stdout == "a\ufffd\ufffdbé", ran


@scenario()
async def commands_go_on_without_a_client(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    handle = await now(sandbox.commands.run("sleep 2; echo late > done", background=True))
    await now(handle.disconnect())
    assert handle.pid in [one.pid for one in await now(sandbox.commands.list())]
    await stage.until(lambda: sandbox.files.exists("done"))
