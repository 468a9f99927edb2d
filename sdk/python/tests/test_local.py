"""Tests of the local server, which starts on first use and stops when the process ends for any reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from conftest import BINARY, TEMPLATES

USE = """
import asyncio, bellglass, os, sys
bellglass.local(binary=os.environ["TEST_BINARY"])
sandbox = bellglass.Sandbox.create(limits={"memory_bytes": 134217728, "disk_bytes": 67108864})
async def other():
    again = await bellglass.AsyncSandbox.connect(sandbox.id)
    return (await again.commands.run("echo inside")).stdout
print(asyncio.run(other()).strip(), bellglass.local().data, sandbox.id, flush=True)
child = os.fork()
if child == 0:
    sandbox.commands.run("true").check()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
sandbox.commands.run("true").check()
print("still there", flush=True)
"""


def begun(then: str) -> tuple[subprocess.Popen[str], Path, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BELLGLASS_")}
    environment |= {"BELLGLASS_DATA": str(TEMPLATES), "TEST_BINARY": str(BINARY)}
    program = [sys.executable, "-c", USE + then]
    child = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment)
    assert child.stdout is not None
    said, data, sandbox = child.stdout.readline().split()
    assert (said, child.stdout.readline()) == ("inside", "still there\n")
    return child, Path(data), sandbox


def gone(data: Path, sandbox: str) -> None:
    """Wait until the server and its sandbox are gone."""
    until = time.monotonic() + 30
    while left := [line for line in processes() if str(data) in line or sandbox in line] or data.exists():
        assert time.monotonic() < until, left
        time.sleep(0.1)


def processes() -> list[str]:
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return lines


def test_it_ends_with_its_process_and_so_do_its_sandboxes() -> None:
    # A child process that keeps running does not keep the server alive.
    child, data, sandbox = begun("if os.fork() == 0: import time; os.close(1); time.sleep(20); os._exit(0)")
    assert child.wait(60) == 0
    gone(data, sandbox)


def test_it_ends_though_its_process_was_killed() -> None:
    child, data, sandbox = begun("import time; time.sleep(600)")
    child.send_signal(signal.SIGKILL)
    child.wait(10)
    gone(data, sandbox)


def test_a_process_without_a_server_or_a_binary_gets_the_documented_result() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BELLGLASS_")}
    program = (
        "import bellglass.local_server as l; l.shutil.which = lambda name: None\n"
        "from bellglass import execute_python, cleanup_sandbox\n"
        "print(execute_python('print(1)'), cleanup_sandbox())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60, check=True
    )
    why = "Failed to initialize sandbox engine: Failed to initialize any sandbox backend (Daytona or Docker)"
    assert ran.stdout.strip() == f"{ {'exit_code': 1, 'stdout': '', 'stderr': why} } True"
