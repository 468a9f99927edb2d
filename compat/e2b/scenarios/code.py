"""The interpreter: code that is run, what it shows, and the contexts it runs in."""

from __future__ import annotations

import e2b
from scenario import Stage, now, scenario

IN_ORDER = """
import sys, time
print("out", flush=True)
time.sleep(0.3)
print("err", file=sys.stderr, flush=True)
time.sleep(0.3)
display("shown")
time.sleep(0.3)
raise ValueError("no good")
"""


@scenario(code=True)
async def code_uses_its_own_template(stage: Stage) -> None:
    sandbox = await stage.interpreter()
    info = await now(sandbox.get_info())
    assert "code-interpreter-v1" in (info.name, info.template_id), info
    seen = await now(sandbox.run_code("import os, getpass; print(getpass.getuser(), os.getcwd())"))
    assert "".join(seen.logs.stdout) == "user /home/user\n", seen


@scenario(code=True)
async def code_keeps_its_state(stage: Stage) -> None:
    sandbox = await stage.interpreter()
    first = await now(sandbox.run_code("x = 20\ndef twice(n): return 2 * n"))
    assert first.error is None and first.results == [] and first.text is None, first
    second = await now(sandbox.run_code("print('adding'); twice(x) + 2"))
    assert (second.text, second.logs.stdout, second.logs.stderr) == ("42", ["adding\n"], []), second
    assert [one.is_main_result for one in second.results] == [True], second
    assert second.execution_count == first.execution_count + 1


@scenario(code=True)
async def code_and_commands_share_files(stage: Stage) -> None:
    sandbox = await stage.interpreter()
    await now(sandbox.files.write("shared.txt", "from outside"))
    assert (await now(sandbox.run_code("open('shared.txt').read()"))).text == "from outside"
    await now(sandbox.run_code("open('made.txt', 'w').write('by code')"))
    assert (await now(sandbox.commands.run("cat made.txt"))).stdout == "by code"


@scenario(code=True)
async def code_unicode(stage: Stage) -> None:
    sandbox = await stage.interpreter()
    ran = await now(sandbox.run_code("größe = '日本 🎉'; print(größe * 2000); größe"))
    assert ran.text == "日本 🎉", ran.text
    assert "".join(ran.logs.stdout) == "日本 🎉" * 2000 + "\n"


@scenario(code=True)
async def code_whose_sandbox_ends_is_no_success(stage: Stage) -> None:
    sandbox = stage.keep(await now(stage.of("Sandbox", stage.code).create(timeout=4)))
    with stage.raises(Exception):
        await now(sandbox.run_code("import time\nfor second in range(60):\n    print(second)\n    time.sleep(1)"))


@scenario(code=True)
async def code_that_exits_with_a_code_is_an_error(stage: Stage) -> None:
    sandbox = stage.keep(await now(stage.of("Sandbox", stage.code).create()))
    ran = await now(sandbox.run_code("import sys; sys.exit(3)"))
    assert (ran.error.name, ran.error.value) == ("SystemExit", "3"), ran
    ran = await now(sandbox.run_code("exit 3", language="bash"))
    assert ran.error.value == "the program exited with code 3; see stderr; its variables were lost", ran
    assert (await now(sandbox.run_code("1 + 1"))).text == "2"


@scenario(code=True)
async def code_that_fails_tells_why(stage: Stage) -> None:
    sandbox = await stage.interpreter()
    ran = await now(sandbox.run_code("def f(): return 1 / 0\nprint('before')\nf()"))
    assert (ran.error.name, ran.error.value) == ("ZeroDivisionError", "division by zero"), ran.error
    assert isinstance(ran.error.traceback, str) and "f()" in ran.error.traceback, ran.error
    assert ran.logs.stdout == ["before\n"] and ran.text is None, ran
    wrong = await now(sandbox.run_code("if"))
    assert wrong.error.name == "SyntaxError", wrong.error
    assert (await now(sandbox.run_code("1 + 1"))).text == "2"


@scenario(code=True)
async def code_callbacks_come_in_order(stage: Stage) -> None:
    sandbox = await stage.interpreter()
    seen: list[tuple[str, str]] = []
    ran = await now(
        sandbox.run_code(
            IN_ORDER,
            on_stdout=lambda message: seen.append(("stdout", message.line)),
            on_stderr=lambda message: seen.append(("stderr", message.line)),
            on_result=lambda result: seen.append(("result", result.text)),
            on_error=lambda error: seen.append(("error", error.name)),
        )
    )
    assert seen == [("stdout", "out\n"), ("stderr", "err\n"), ("result", "shown"), ("error", "ValueError")], seen
    assert [one.is_main_result for one in ran.results] == [False], ran.results


@scenario(code=True)
async def code_envs(stage: Stage) -> None:
    sandbox = await stage.interpreter()
    look = "import os; os.environ.get('COLOUR')"
    assert (await now(sandbox.run_code(look, envs={"COLOUR": "green"}))).text == "green"
    assert (await now(sandbox.run_code(look))).text is None
    own = stage.keep(await now(stage.of("Sandbox", stage.code).create(envs={"COLOUR": "blue"}, timeout=300)))
    assert (await now(own.run_code(look))).text == "blue"
    assert (await now(own.run_code(look, envs={"COLOUR": "green"}))).text == "green"
    assert (await now(own.run_code(look))).text == "blue"


@scenario(code=True)
async def code_bash(stage: Stage) -> None:
    sandbox = await stage.interpreter()
    ran = await now(sandbox.run_code("cd /tmp; for n in 1 2; do echo $n; done", language="bash"))
    assert "".join(ran.logs.stdout) == "1\n2\n" and ran.error is None, ran
    assert "".join((await now(sandbox.run_code("pwd", language="bash"))).logs.stdout) == "/tmp\n"
    assert (await now(sandbox.run_code("1 + 1", language="python"))).text == "2"


@scenario(code=True)
async def code_language_that_is_not_there(stage: Stage) -> None:
    sandbox = await stage.interpreter()
    with stage.raises(e2b.SandboxException) as caught:
        await now(sandbox.run_code("1", language="cobol"))
    assert "cobol" in caught.text, caught.text


@scenario(code=True)
async def code_timeout(stage: Stage) -> None:
    sandbox = await stage.interpreter()
    await now(sandbox.run_code("kept = 7"))
    with stage.raises(e2b.TimeoutException):
        await now(sandbox.run_code("import time\nwhile True: time.sleep(0.1)", timeout=2))
    # What ran is interrupted, and what was there before is there still.
    assert (await now(sandbox.run_code("kept", timeout=30))).text == "7"


@scenario(code=True)
async def code_contexts(stage: Stage) -> None:
    sandbox = await stage.interpreter()
    await now(sandbox.run_code("mine = 1"))
    context = await now(sandbox.create_code_context(cwd="/tmp"))
    assert (context.language, context.cwd) == ("python", "/tmp"), context
    assert context.id in [one.id for one in await now(sandbox.list_code_contexts())]
    assert (await now(sandbox.run_code("import os; os.getcwd()", context=context))).text == "/tmp"
    assert (await now(sandbox.run_code("mine", context=context))).error.name == "NameError"
    await now(sandbox.run_code("theirs = 2", context=context))
    await now(sandbox.restart_code_context(context))
    assert (await now(sandbox.run_code("theirs", context=context))).error.name == "NameError"
    assert (await now(sandbox.run_code("import os; os.getcwd()", context=context))).text == "/tmp"
    await now(sandbox.remove_code_context(context))
    assert context.id not in [one.id for one in await now(sandbox.list_code_contexts())]
    with stage.raises(e2b.NotFoundException):
        await now(sandbox.run_code("1", context=context))
    assert (await now(sandbox.run_code("mine"))).text == "1"


@scenario(code=True)
async def code_context_of_another_language(stage: Stage) -> None:
    sandbox = await stage.interpreter()
    context = await now(sandbox.create_code_context(language="bash", cwd="/tmp"))
    assert context.language == "bash", context
    assert "".join((await now(sandbox.run_code("pwd", context=context))).logs.stdout) == "/tmp\n"
    await now(sandbox.remove_code_context(context.id))


@scenario(code=True)
async def code_is_over_when_its_sandbox_is(stage: Stage) -> None:
    sandbox = stage.keep(await now(stage.of("Sandbox", stage.code).create(timeout=300)))
    await now(sandbox.kill())
    with stage.raises(e2b.TimeoutException):
        await now(sandbox.run_code("1"))
