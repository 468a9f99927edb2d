"""Agent frameworks with their own integrations of E2B, unmodified, against a real server and a model that follows a script."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import environments
import pytest
from conftest import Server
from models import Call, ChatCompletions, Heard, Model, Turn

PROGRAMS = Path(__file__).parent / "e2b" / "frameworks"
RUNS_WITHIN = 300
"""A program with its sandbox, on a machine under load; importing a framework alone takes seconds."""
#: The newest of the SDKs that `versions.toml` has.
E2B = ("e2b==2.63.0", "e2b-code-interpreter==2.11.5")
OPENAI = "openai==3.49.0"
FRAMEWORKS = {
    "smolagents": ("smolagents==1.26.0", "e2b-code-interpreter==2.11.5", "e2b==2.63.0", OPENAI),
    "agno": ("agno==3.1.10", *E2B, OPENAI),
    "langchain": ("langchain-e2b==0.0.6", "langchain-openai==1.7.3", "deepagents==0.6.12", "e2b==2.63.0", OPENAI),
}


class Stranger(Model):
    """A model for programs that are not ours: which tools they bring and how they tell the past is their own affair.

    What a turn expects is therefore looked for in all that the request says."""

    def __init__(self, script: list[Turn]) -> None:
        super().__init__(script, [])

    def _next(self, path: str, headers: Mapping[str, str], raw: bytes) -> dict[str, Any]:
        with self._lock:
            assert path == "/v1/chat/completions", "this model has no such path"
            body = json.loads(raw)
            assert not body.get("stream"), "this model does not stream"
            assert self._turn < len(self._script), f"the script is over: {json.dumps(body['messages'][-3:])}"
            turn = self._script[self._turn]
            turn.expects(Heard("", json.dumps(body["messages"], ensure_ascii=False), ()))
            chat = ChatCompletions()
            message = chat.message(turn, self._turn)
            self._turn += 1
            return chat.response(message, str(body["model"]))


def said(*texts: str) -> Any:
    """Expects that the request holds these texts."""

    def expects(heard: Heard) -> None:
        missing = [text for text in texts if text not in heard.question]
        assert not missing, f"{missing} is not in {heard.question[-3000:]}"

    return expects


def run(server: Server, framework: str, program: str, script: list[Turn], question: str, directory: Path) -> str:
    """What a program answers in the end. Nothing of its sandboxes is left."""
    python = environments.python(f"e2b-with-{framework}", *FRAMEWORKS[framework])
    with Stranger(script) as model:
        ran = subprocess.run(
            [python, PROGRAMS / program, question],
            cwd=directory,
            env=environments.environment(
                E2B_API_KEY=f"e2b_{server.key}",
                E2B_API_URL=server.url,
                E2B_SANDBOX_URL=server.url,
                **model.environment(),
            ),
            capture_output=True,
            text=True,
            timeout=RUNS_WITHIN,
            check=False,
        )
    try:
        model.check()
    except AssertionError as fault:
        raise AssertionError(f"{fault}\n{ran.stdout}\n{ran.stderr}") from None
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert server.get("/v1/sandboxes")["items"] == []
    # A framework may say more after it.
    return ran.stdout.rpartition("the answer: ")[2].partition("\n")[0]


@pytest.mark.timeout(RUNS_WITHIN + environments.INSTALLS_WITHIN)
def test_smolagents_runs_its_code_inside(server: Server, tmp_path: Path) -> None:
    script = [
        Turn("I add them up.\n<code>\ntotal = sum(range(101))\nprint('so far', total)\n</code>", expects=said("up to 100")),
        Turn("A slip.\n<code>\nprint(totl)\n</code>", expects=said("so far 5050")),
        # What one step has made is there in the next, and an answer of several kinds comes back as what it was.
        Turn("Done.\n<code>\nfinal_answer({'total': total, 'half': total / 2})\n</code>", expects=said("NameError", "totl")),
    ]
    answer = run(server, "smolagents", "code_agent.py", script, "What is the sum of the numbers up to 100?", tmp_path)
    assert answer == "{'total': 5050, 'half': 2525.0}"


@pytest.mark.timeout(RUNS_WITHIN + environments.INSTALLS_WITHIN)
def test_agno_has_code_files_and_commands(server: Server, tmp_path: Path) -> None:
    script = [
        Turn(calls=[Call("run_python_code", {"code": "print(sum(range(101)))"})], expects=said("up to 100")),
        Turn(calls=[Call("write_file_content", {"file_path": "/home/user/n.txt", "content": "5050"})], expects=said("5050")),
        Turn(calls=[Call("run_command", {"command": "expr $(cat /home/user/n.txt) + 1"})], expects=said("n.txt")),
        Turn(calls=[Call("shutdown_sandbox", {})], expects=said("5051")),
        Turn("It is 5050.", expects=said("shut down")),
    ]
    answer = run(server, "agno", "toolkit.py", script, "What is the sum of the numbers up to 100?", tmp_path)
    assert answer == "It is 5050."


@pytest.mark.timeout(RUNS_WITHIN + environments.INSTALLS_WITHIN)
def test_langchain_has_a_backend_of_it(server: Server, tmp_path: Path) -> None:
    program = "/home/user/add.py"
    script = [
        Turn(calls=[Call("write_file", {"file_path": program, "content": "print(sum(range(11)))\n"})], expects=said("up to 100")),
        Turn(calls=[Call("edit_file", {"file_path": program, "old_string": "11", "new_string": "101"})], expects=said(program)),
        Turn(calls=[Call("execute", {"command": f"python3 {program}"})]),
        Turn(calls=[Call("read_file", {"file_path": program}), Call("ls", {"path": "/home/user"})], expects=said("5050")),
        Turn("It is 5050.", expects=said("sum(range(101))")),
    ]
    answer = run(server, "langchain", "deep_agent.py", script, "What is the sum of the numbers up to 100?", tmp_path)
    assert answer == "It is 5050."
