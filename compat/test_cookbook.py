"""The programs of docs/guides/cookbook, as they are, with a real server and a model that follows a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Server
from models import Call, Heard, Model, Turn, heard, told

COOKBOOK = ROOT / "docs/guides/cookbook"
RUNS_WITHIN = 240
"""A program with all its sandboxes, on a machine under load."""
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def cook(server: Server, tmp_path: Path) -> Cook:
    return Cook(server, tmp_path)


class Cook:
    """Runs programs in a directory of their own, and looks at what they leave."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server, self.directory = server, directory
        self._sessions = self._known()

    def run(self, program: str, model: Model, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs one to its end. The model's script must have been followed, whatever the program made of it."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "PYTHONPATH": str(ROOT / "sdk/python/src"),
            "BELLGLASS_SERVER": self.server.url,
            "BELLGLASS_API_KEY": self.server.key,
            **model.environment(),
        }
        ran = subprocess.run(
            [sys.executable, COOKBOOK / program, *words],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUNS_WITHIN,
            check=False,
        )
        try:
            model.check()
        except AssertionError as fault:
            raise AssertionError(f"{fault}\n{ran.stderr}") from None
        return ran

    def ended(self, *, runs: int) -> dict[str, Any]:
        """The one session that was made since: it has ended, nothing of its sandbox is left, and it had so many runs."""
        (made,) = self._known().keys() - self._sessions.keys()
        session: dict[str, Any] = self.server.get(f"/v1/sessions/{made}")
        assert session["state"] == "ended" and session.get("sandbox") is None, session
        assert self.server.get("/v1/sandboxes")["items"] == []
        assert len(self.server.get(f"/v1/sessions/{made}/runs")["items"]) == runs
        return session

    def _known(self) -> dict[str, dict[str, Any]]:
        return {one["id"]: one for one in self.server.get("/v1/sessions?limit=1000")["items"]}


def test_openai_loop_mends_a_script_and_answers(cook: Cook) -> None:
    primes = "found, n = [], 2\nwhile len(found) < 10:\n    found += [n] if all(n % p for p in found) else []\n    n += 1\n"
    script = [
        Turn(
            calls=[Call("execute_python", '{"script": "print(')],
            expects=told(system="## PYTHON EXECUTION (Sandboxed)", question="the sum of the first ten primes"),
        ),
        Turn(
            "I will write it down first.",
            [Call("execute_python", {"script": primes + "open('sum', 'w').write(str(sum(foud)))"})],
            heard("are not valid JSON", "Call it again with a JSON object"),
        ),
        Turn(
            calls=[
                Call("execute_python", {"script": primes + "open('sum', 'w').write(str(sum(found)))"}),
                Call("execute_python", {"script": "print('it is', open('sum').read())"}),
            ],
            expects=heard('"exit_code": 1', "NameError: name 'foud' is not defined", "/workspace/task.py"),
        ),
        Turn(calls=[Call("cleanup_sandbox", {})], expects=heard('"exit_code": 0', "it is 129")),
        Turn("The sum is 129.", expects=heard('"success": true')),
    ]
    with Model(script, cook.server.tools("python", "openai")) as model:
        ran = cook.run("openai_loop.py", model, "What is the sum of the first ten primes?")
    assert (ran.returncode, ran.stdout) == (0, "The sum is 129.\n"), ran.stderr
    cook.ended(runs=4)


def test_anthropic_loop_sees_pictures_and_saves_them(cook: Cook) -> None:
    plot = "import matplotlib.pyplot as plt\nplt.plot([1, 1, 2, 3, 5, 8])\nplt.title('Fibonacci')\n"
    script = [
        Turn(
            "Let me draw it.",
            [Call("execute_python_code", {"code": plot + "plt.titel('x')"})],
            told(system="## CODE INTERPRETER (Sandboxed Python)", question="Plot the Fibonacci numbers."),
        ),
        Turn(
            "A slip.",
            [
                Call("execute_python_code", {"code": plot + "print('drawn')"}),
                Call("execute_python_code", {"code": "open('numbers.csv', 'w').write('n\\n1\\n1\\n2\\n')"}),
            ],
            _failed_code,
        ),
        Turn(calls=[Call("execute_python", {"code": "1"})], expects=_drawn),
        Turn("They grow\nexponentially.", expects=heard("there is no tool", failed=True)),
    ]
    with Model(script, cook.server.tools("interpreter", "anthropic")) as model:
        ran = cook.run("anthropic_loop.py", model, "Plot the Fibonacci numbers.")
    assert (ran.returncode, ran.stdout) == (0, "They grow\nexponentially.\n"), ran.stderr
    assert (cook.directory / "numbers.csv").read_text() == "n\n1\n1\n2\n"
    (picture,) = cook.directory.glob("*.png")
    assert picture.read_bytes().startswith(PNG)
    cook.ended(runs=3)


def test_langchain_agent_calls_tools_side_by_side_and_mends_arguments(cook: Cook) -> None:
    weekday = "import datetime; print(datetime.date(2000, 2, 29).strftime('%A'))"
    script = [
        Turn(
            calls=[Call("execute_python", {"script": weekday}), Call("execute_python", {"code": weekday})],
            expects=told(system="## PYTHON EXECUTION (Sandboxed)", question="29 February 2000"),
        ),
        Turn(
            calls=[Call("execute_python", {"script": "raise ValueError('Test error')"})],
            expects=heard("Tuesday", '"exit_code": 1', "`script` is missing"),
        ),
        Turn("It was a Tuesday.", expects=heard("ValueError: Test error")),
    ]
    with Model(script, cook.server.tools("python", "openai")) as model:
        ran = cook.run("langchain_agent.py", model, "Which weekday was 29 February 2000?")
    assert (ran.returncode, ran.stdout) == (0, "It was a Tuesday.\n"), ran.stderr
    cook.ended(runs=2)


def test_mcp_client_has_tools_and_instructions_from_the_endpoint(cook: Cook) -> None:
    script = [
        Turn(
            calls=[Call("execute_python", {"script": "open('kept', 'w').write('yes')\nprint(6 * 7"})],
            expects=told(system="## PYTHON EXECUTION (Sandboxed)", question="What is 6 times 7?"),
        ),
        Turn(
            calls=[Call("execute_python", {"script": "open('kept', 'w').write('yes')\nprint(6 * 7)"})],
            expects=heard("SyntaxError"),
        ),
        Turn(calls=[Call("execute_python", {"script": "print(open('kept').read())"})], expects=heard("42")),
        Turn(calls=[Call("execute_bash", {"script": "ls"})], expects=heard("yes")),
        Turn("It is 42.", expects=heard("execute_bash")),
    ]
    with Model(script, cook.server.tools("python", "openai")) as model:
        ran = cook.run("mcp_client.py", model, "What is 6 times 7?")
    assert (ran.returncode, ran.stdout) == (0, "It is 42.\n"), ran.stderr
    cook.ended(runs=3)


ANALYSIS = """\
import csv, os
import matplotlib.pyplot as plt

names = {row["id"]: row["name"] for row in csv.DictReader(open("/tmp/data/Regions_2026.csv"))}
totals = {}
for row in csv.DictReader(open("/tmp/data/sales.csv")):
    totals[names[row["region"]]] = totals.get(row["region"], 0) + int(row["amount"])
os.makedirs("/tmp/output/plots", exist_ok=True)
with open("/tmp/output/totals.csv", "w") as file:
    csv.writer(file, lineterminator="\\n").writerows(sorted(totals.items()))
plt.bar(totals.keys(), totals.values())
plt.savefig("/tmp/output/plots/totals.png")
print(max(totals, key=totals.get), "earns most", totals["Nort"])
"""


def test_csv_analysis_edits_what_fails_and_saves_the_results(cook: Cook) -> None:
    (cook.directory / "sales.csv").write_text("region,amount\n1,10\n2,30\n1,25\n")
    (cook.directory / "Regions 2026.csv").write_text("id,name\n1,North\n2,South\n")
    write = {"file_path": "/tmp/analysis.py", "content": ANALYSIS}
    run = Call("sandbox_exec", {"command": ["python", "/tmp/analysis.py"]})

    def edit(old: str, new: str) -> Call:
        return Call("sandbox_edit_file", {"file_path": "/tmp/analysis.py", "old_string": old, "new_string": new})

    script = [
        Turn(calls=[Call("sandbox_write_file", {**write, "file_path": "/etc/analysis.py"})], expects=_analysis_begins),
        Turn(
            calls=[Call("sandbox_write_file", write)],
            expects=heard("Invalid path: must be /tmp/* or /workspace/*", "Use /tmp/ or /workspace/ only."),
        ),
        Turn(calls=[run], expects=heard("File written successfully. Use sandbox_exec to run it.")),
        Turn(
            calls=[edit("Nort", "North")],
            expects=heard("KeyError: 'Nort'", "Execution failed. Review stderr and use sandbox_edit_file to fix errors."),
        ),
        Turn(
            calls=[edit('.get(row["region"], 0)', '.get(names[row["region"]], 0)'), run],
            expects=heard("File edited successfully. Re-run with sandbox_exec."),
        ),
        Turn(
            "North earns most: 35.",
            expects=heard("North earns most 35", "Code executed successfully. 2 output files created."),
        ),
    ]
    with Model(script, cook.server.tools("analysis", "openai")) as model:
        ran = cook.run("csv_analysis.py", model, "Which region earns most?", "results", "sales.csv", "Regions 2026.csv")
    assert (ran.returncode, ran.stdout) == (0, "North earns most: 35.\n"), ran.stderr
    results = cook.directory / "results"
    assert sorted(str(path.relative_to(results)) for path in results.rglob("*.*")) == ["plots/totals.png", "totals.csv"]
    assert (results / "totals.csv").read_text() == "North,35\nSouth,30\n"
    assert (results / "plots/totals.png").read_bytes().startswith(PNG)
    # The first call was refused before anything ran.
    cook.ended(runs=5)


def test_csv_analysis_that_gives_up_leaves_nothing_behind(cook: Cook) -> None:
    (cook.directory / "sales.csv").write_text("region,amount\n1,10\n")
    fail = Call("sandbox_exec", {"command": ["python", "-c", "raise SystemExit('it does not work')"]})
    with Model([Turn(calls=[fail])] * 5, cook.server.tools("analysis", "openai")) as model:
        ran = cook.run("csv_analysis.py", model, "Which region earns most?", "results", "sales.csv")
    assert ran.returncode == 1 and ran.stderr.endswith("5 runs failed in a row; the last error was:\nit does not work\n\n")
    cook.ended(runs=5)


def _failed_code(heard: Heard) -> None:
    (answer,) = heard.answers
    assert '"success": false' in answer.text and "titel" in answer.text, answer.text
    assert not answer.failed, "code that ran and failed is a result like any other"


def _drawn(heard: Heard) -> None:
    drawn, saved = heard.answers
    assert len(drawn.pictures) == 1 and "drawn" in drawn.text and "base64" not in drawn.text, drawn.text
    assert not saved.pictures and "numbers.csv" in saved.text, saved.text


def _analysis_begins(heard: Heard) -> None:
    assert heard.system.startswith("## ADVANCED ANALYSIS (Sandboxed Code Execution)"), heard.system
    assert "- sales: /tmp/data/sales.csv (29 bytes)" in heard.question, heard.question
    assert "- Regions 2026: /tmp/data/Regions_2026.csv (24 bytes)" in heard.question, heard.question
