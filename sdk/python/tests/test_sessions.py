"""Tests of sessions and tools."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from conftest import Server, Way

import bellglass


async def test_a_tool_is_called_and_files_stay(way: Way) -> None:
    session = await way.do(way.Session.create("python", client=way.client, template="interpreter"))
    result = await way.do(session.call("execute_python", script="open('kept', 'w').write('yes'); print(6 * 7)"))
    assert result == {"exit_code": 0, "stdout": "42\n", "stderr": ""}
    again = await way.do(way.Session.connect(session.id, client=way.client))
    parameters = {"script": "print(open('kept').read())"}
    result = await way.do(again.call_tool("execute_python", parameters, reasoning_trace="to see"))
    assert result["stdout"] == "yes\n"
    runs = await way.do(session.runs())
    assert len(runs) == 2 and any(run.get("reasoning_trace") == "to see" for run in runs)
    await way.do(session.cleanup())
    assert (await way.do(session.call("execute_python", **parameters)))["exit_code"] == 1
    assert (await way.do(session.end())).state == "ended"


async def test_pictures_and_artifacts_come_back(way: Way, tmp_path: Path) -> None:
    session = await way.do(way.Session.create("interpreter", client=way.client))
    code = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.savefig('p.png'); plt.close()"
    use = {"type": "tool_use", "id": "t1", "name": "execute_python_code", "input": {"code": code}}
    message = await way.do(session.handle_anthropic({"role": "assistant", "content": [use]}))
    (block,) = message["content"]
    assert block["tool_use_id"] == "t1" and [one["type"] for one in block["content"]] == ["text", "image"]
    kept = await way.do(session.artifacts())
    assert "p.png" in [one["name"] for one in kept]
    assert (await way.do(session.download("p.png")))[:4] == b"\x89PNG"
    saved = await way.do(session.save_artifacts(tmp_path / "results"))
    assert (tmp_path / "results" / "p.png") in saved and saved[0].stat().st_size > 0
    assert await way.do(session.remove_artifacts()) == len(kept)
    await way.do(session.end())


async def test_what_a_model_gets_wrong_is_told_to_it(way: Way) -> None:
    session = await way.do(way.Session.create("python", client=way.client, template="interpreter"))
    calls = [
        {"id": "1", "function": {"name": "execute_python", "arguments": '{"script": '}},
        {"id": "2", "function": {"name": "no_such_tool", "arguments": "{}"}},
        {"id": "3", "function": {"name": "execute_python", "arguments": "{}"}},
        {"id": "4", "function": {"name": "execute_python", "arguments": '{"script": "print(1)"}'}},
    ]
    answers = await way.do(session.handle_openai({"role": "assistant", "tool_calls": calls}))
    assert [one["tool_call_id"] for one in answers] == ["1", "2", "3", "4"]
    assert all(one["role"] == "tool" for one in answers)
    assert "error" in json.loads(answers[0]["content"]) and json.loads(answers[3]["content"])["stdout"] == "1\n"
    await way.do(session.end())


async def test_tools_and_the_prompt_are_those_of_the_set(way: Way) -> None:
    session = await way.do(way.Session.create("analysis", client=way.client))
    names = [tool["function"]["name"] for tool in await way.do(session.openai_tools())]
    assert "sandbox_exec" in names
    assert [tool["name"] for tool in await way.do(session.anthropic_tools())] == names
    assert [tool["name"] for tool in await way.do(session.tools("mcp"))] == names
    assert "ADVANCED ANALYSIS" in await way.do(session.prompt())
    await way.do(session.add_dataset("Colours of 2024", "red,3\n"))
    assert len((await way.do(session.info())).datasets) == 1
    await way.do(session.end())


async def test_events_tell_of_a_run_until_the_session_ends(way: Way) -> None:
    session: Any = bellglass.Session.create(
        "python", client=bellglass.Client(way.server.url, way.server.key), template="interpreter"
    )
    with ThreadPoolExecutor(1) as thread:
        kinds = thread.submit(lambda: [event["type"] for event in session.events()])
        time.sleep(0.5)
        session.call("execute_python", script="print(1)")
        session.end()
        heard = kinds.result(60)
    assert heard[-1] == "session_ended" and {"sandbox", "run_started", "output", "run_ended"} <= set(heard)


PROGRAM = """
from concurrent.futures import ThreadPoolExecutor
from bellglass import cleanup_sandbox, execute_python
with ThreadPoolExecutor(8) as threads:
    said = list(threads.map(lambda n: execute_python(f"print({n})"), range(16)))
assert said == [{"exit_code": 0, "stdout": f"{n}\\n", "stderr": ""} for n in range(16)], said
failed = execute_python("print('Before error')\\nraise ValueError('Test error')")
assert set(failed) == {"exit_code", "stdout", "stderr"} and failed["exit_code"] == 1, failed
assert failed["stdout"] == "Before error\\n" and failed["stderr"].endswith("ValueError: Test error\\n")
assert execute_python("print('x' * 20000)").get("stdout_truncated") is True
assert cleanup_sandbox() is True and execute_python("print(2)")["stdout"] == "2\\n"
from bellglass import python_set
python_set._session.made.end()
assert execute_python("print(3)") == {"exit_code": 0, "stdout": "3\\n", "stderr": ""}, "an ended session is replaced"
print("all well")
"""


def test_the_two_functions_work_from_many_threads(server: Server) -> None:
    environment = {"BELLGLASS_SERVER": server.url, "BELLGLASS_API_KEY": server.key, "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=150, check=False
    )
    assert ran.stdout == "all well\n", ran.stderr
