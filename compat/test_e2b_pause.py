"""Agent frameworks whose backends for E2B have a sandbox paused at its timeout, unmodified, against a real server.

Each program writes a file and starts a process that counts in its memory. At the timeout the sandbox is paused. With the
next call the framework resumes it by its own means; the file is there, and the same process continues to count.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import environments
import pytest
from conftest import Server
from test_e2b import e2b_key

PROGRAMS = Path(__file__).parent / "e2b" / "frameworks"
RUNS_WITHIN = 300
"""A program with its sandbox, on a machine under load; importing a framework alone takes seconds."""
PAUSED_WITHIN = 60
"""From the first line of a program: what is left of its timeout, and what the server needs for a pause."""
STANDS_S = 3
"""How long a paused sandbox is left alone."""
OPENAI_AGENTS = ("openai-agents[e2b]==0.24.0", "e2b==2.31.0", "openai==3.49.0")
PYDANTIC_AI = ("pydantic-ai-harness[e2b]==0.62.0", "pydantic-ai-slim==2.62.0", "e2b==2.63.0")
MASTRA = ("@mastra/e2b@0.8.0", "@mastra/core@1.71.0", "e2b@2.51.0")
#: The number is kept only in the memory of the shell. Together with its start, the number of a process is not given twice.
COUNTER = """\
start=$(cut -d ' ' -f 22 /proc/$$/stat)
n=0
while true; do
  n=$((n + 1))
  echo "$$ $start $n" > count.new
  mv count.new count
  sleep 0.1
done
"""


def counted(text: str) -> tuple[str, int]:
    """The process that counts, and how far it has come."""
    process, _, number = text.strip().rpartition(" ")
    return process, int(number)


def paused(server: Server) -> str:
    """The only sandbox, as soon as it is paused."""
    end = time.monotonic() + PAUSED_WITHIN
    while True:
        [sandbox] = server.get("/v1/sandboxes")["items"]
        if sandbox["state"] == "paused":
            assert sandbox["on_timeout"] == "pause", sandbox
            return str(sandbox["id"])
        assert time.monotonic() < end, f"it is not paused: {sandbox}"
        time.sleep(0.2)


def check(server: Server, words: list[str | Path], directory: Path, log: Path) -> None:
    """Runs a program over the pause of its sandbox."""
    environment = environments.environment(
        E2B_API_KEY=e2b_key(server.key),
        E2B_API_URL=server.url,
        E2B_SANDBOX_URL=server.url,
    )
    pipe = subprocess.PIPE
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [*words, COUNTER], cwd=directory, env=environment, stdin=pipe, stdout=pipe, stderr=errors, text=True
        ) as program,
    ):

        def says() -> dict[str, Any]:
            assert program.stdout is not None
            # A framework may say more than the program.
            for line in program.stdout:
                if line.startswith("{"):
                    return json.loads(line)
            raise AssertionError(log.read_text())

        def goes_on() -> None:
            assert program.stdin is not None
            program.stdin.write("\n")
            program.stdin.flush()

        process, before = counted(says()["count"])
        sandbox = paused(server)
        time.sleep(STANDS_S)
        # Nobody but the program resumes it.
        assert paused(server) == sandbox
        goes_on()
        after = says()
        resumed, later = counted(after["count"]), counted(after["later"])
        assert resumed[0] == later[0] == process, (process, after)
        assert before <= resumed[1] < later[1], (before, after)
        assert after["program"] == COUNTER
        [running] = server.get("/v1/sandboxes")["items"]
        assert (running["id"], running["state"]) == (sandbox, "running")
        goes_on()
        assert program.wait(RUNS_WITHIN) == 0, log.read_text()
    assert server.get("/v1/sandboxes")["items"] == []


@pytest.mark.timeout(RUNS_WITHIN + environments.INSTALLS_WITHIN)
def test_openai_agents_resumes_by_any_call(server: Server, tmp_path: Path) -> None:
    python = environments.python("e2b-with-openai-agents", *OPENAI_AGENTS)
    check(server, [python, PROGRAMS / "pause_openai_agents.py"], tmp_path, tmp_path / "log")


@pytest.mark.timeout(RUNS_WITHIN + environments.INSTALLS_WITHIN)
def test_pydantic_ai_attaches_to_it_in_another_run(server: Server, tmp_path: Path) -> None:
    python = environments.python("e2b-with-pydantic-ai", *PYDANTIC_AI)
    check(server, [python, PROGRAMS / "pause_pydantic_ai.py"], tmp_path, tmp_path / "log")


@pytest.mark.timeout(RUNS_WITHIN + environments.INSTALLS_WITHIN)
def test_mastra_connects_to_it_again(server: Server, tmp_path: Path) -> None:
    home = environments.javascript("e2b-with-mastra", *MASTRA)
    check(server, [environments.beside("node"), PROGRAMS / "pause_mastra.mjs"], home, tmp_path / "log")
