"""Bellglass's tools through unmodified MCP clients: the official Python package and the official inspector."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

HERE = Path(__file__).parent
#: It needs a Node that `requirements.txt` brings.
INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
KEPT = Path(os.environ.get("BELLGLASS_TEST_DATA", "/var/tmp/bellglass-test"))
PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nopen('table.csv', 'w').write('a,b\\n')\nprint('drawn')"
SLOW = "import time\nfor n in range(300):\n    print('tick', n, flush=True)\n    time.sleep(0.1)"

PLANS: dict[str, list[dict[str, Any]]] = {
    "interpreter": [
        {"do": "tools"},
        {"do": "resources"},
        {"do": "call", "tool": "execute_python_code", "arguments": {"code": PLOT}},
        {"do": "resources"},
        {"do": "read", "uri": "bellglass://artifacts/table.csv"},
        {"do": "read", "uri": "bellglass://artifacts/figure_1.png"},
        {"do": "call", "tool": "execute_python_code", "arguments": {"code": "raise ValueError('no')"}},
        {"do": "call", "tool": "execute_python_code", "arguments": {}},
        {"do": "call", "tool": "nonexistent", "fails": True},
        {"do": "call", "tool": "execute_python_code", "arguments": {"code": SLOW[: SLOW.index("300")] + "20" + SLOW[SLOW.index("300") + 3 :]}, "progress": True},
        {"do": "cancel", "tool": "execute_python_code", "arguments": {"code": SLOW}, "after": 2},
        {"do": "call", "tool": "execute_python_code", "arguments": {"code": "print('still here')"}},
    ],
    "analysis": [
        {"do": "tools"},
        {"do": "call", "tool": "sandbox_write_file", "arguments": {"file_path": "/tmp/a.py", "content": "print(1)\n"}},
        {"do": "call", "tool": "sandbox_edit_file", "arguments": {"file_path": "/tmp/a.py", "old_string": "1", "new_string": "6 * 7"}},
        {"do": "call", "tool": "sandbox_exec", "arguments": {"command": ["python", "/tmp/a.py"]}},
        {"do": "call", "tool": "sandbox_exec", "arguments": {"command": "python /tmp/a.py"}},
        {"do": "cancel", "tool": "sandbox_exec", "arguments": {"command": ["sleep", "60"], "timeout": 100}, "after": 1},
        {"do": "call", "tool": "sandbox_exec", "arguments": {"command": ["sh", "-c", "ps ax | grep -c '[s]leep 60' || true"]}},
    ],
    "python": [
        {"do": "tools"},
        {"do": "call", "tool": "execute_python", "arguments": {"script": "print(6 * 7)"}},
        {"do": "call", "tool": "cleanup_sandbox", "arguments": {}},
    ],
}


def reports(words: list[str], plan: list[dict[str, Any]], directory: Path, server: Any) -> list[dict[str, Any]]:
    """What the Python client says of each step of a plan."""
    path = directory / "plan.json"
    path.write_text(json.dumps(plan))
    command = [sys.executable, str(HERE / "mcp" / "client.py"), "--plan", str(path), *words]
    environment = {**os.environ, "BELLGLASS_SERVER": server.url, "BELLGLASS_API_KEY": server.key}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def ways(server: Any, tool_set: str) -> dict[str, list[str]]:
    """How a client reaches the tools of a set."""
    return {
        "http": ["--url", f"{server.url}/mcp?set={tool_set}", "--key", server.key],
        "stdio": ["--", str(server.binary), "mcp", "--set", tool_set],
    }


@pytest.mark.parametrize("way", ["http", "stdio"])
def test_code_runs_and_shows_and_can_be_cancelled(server: Any, way: str, tmp_path: Path) -> None:
    connect, tools, none, plot, resources, table, figure, failed, wrong, unknown, slow, cancelled, after, _ = reports(
        ways(server, "interpreter")[way], PLANS["interpreter"], tmp_path, server
    )
    assert connect["server"]["name"] == "bellglass"
    assert connect["instructions"].startswith("## CODE INTERPRETER")
    assert tools["tools"] == ["execute_python_code"]
    assert none["resources"] == []
    content = plot["result"]["content"]
    assert [block["type"] for block in content[:2]] == ["text", "image"]
    assert content[1]["mimeType"] == "image/png"
    assert "base64" not in content[0]["text"], "a model cannot read a picture as text"
    assert plot["result"]["structuredContent"]["stdout"] == "drawn\n"
    links = [block["uri"] for block in content if block["type"] == "resource_link"]
    assert "bellglass://artifacts/table.csv" in links
    assert "bellglass://artifacts/figure_1.png" in [one["uri"] for one in resources["resources"]]
    assert table["contents"][0]["text"] == "a,b\n"
    assert figure["contents"][0]["blob"].startswith("iVBOR")
    assert failed["result"]["isError"] and "ValueError: no" in failed["result"]["content"][0]["text"]
    assert wrong["result"]["isError"] and "`code` is missing" in wrong["result"]["content"][0]["text"]
    assert "error" in unknown
    assert slow["progress"]["count"] >= 3, slow
    assert "tick" in slow["progress"]["first"][0]["message"]
    assert cancelled["cancelled"]
    assert after["seconds"] < 15, "the next call does not wait for what was cancelled"
    assert after["result"]["structuredContent"]["stdout"] == "still here\n"
    assert any_cancelled(server)


@pytest.mark.parametrize("way", ["http", "stdio"])
def test_every_tool_of_every_set_is_called(server: Any, way: str, tmp_path: Path) -> None:
    _, tools, written, edited, ran, refused, cancelled, left, _ = reports(
        ways(server, "analysis")[way], PLANS["analysis"], tmp_path, server
    )
    assert tools["tools"] == ["sandbox_exec", "sandbox_write_file", "sandbox_edit_file"]
    assert written["result"]["structuredContent"]["bytes_written"] == 9
    assert edited["result"]["structuredContent"]["hint"] == "File edited successfully. Re-run with sandbox_exec."
    assert ran["result"]["structuredContent"]["stdout"] == "42\n"
    assert refused["result"]["isError"] and "`command`" in refused["result"]["content"][0]["text"]
    assert cancelled["cancelled"]
    assert left["result"]["structuredContent"]["stdout"] == "0\n", "what was cancelled is gone"
    _, tools, ran, cleaned, _ = reports(ways(server, "python")[way], PLANS["python"], tmp_path, server)
    assert tools["tools"] == ["execute_python", "cleanup_sandbox"]
    assert ran["result"]["structuredContent"] == {"exit_code": 0, "stdout": "42\n", "stderr": ""}
    assert cleaned["result"]["structuredContent"] == {"success": True}


def test_a_client_that_goes_leaves_no_sandbox(server: Any, tmp_path: Path) -> None:
    def of_sessions(path: str) -> list[str]:
        return [one["id"] for one in server.get(path)["items"] if one["labels"].get("bellglass.session")]

    before = of_sessions("/v1/sandboxes?all=true&limit=1000")
    reports(ways(server, "interpreter")["stdio"], PLANS["interpreter"], tmp_path, server)
    made = set(of_sessions("/v1/sandboxes?all=true&limit=1000")) - set(before)
    assert made, "the client has used a sandbox"
    until = time.monotonic() + 30
    while live := made & set(of_sessions("/v1/sandboxes")):
        assert time.monotonic() < until, live
        time.sleep(0.2)


def test_a_session_is_nobody_elses(server: Any) -> None:
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    }
    headers = {"accept": "application/json, text/event-stream"}
    opened = httpx.post(f"{server.url}/mcp", json=hello, headers={**headers, "authorization": f"Bearer {server.key}"})
    assert opened.status_code == 200
    stolen = {**headers, "mcp-session-id": opened.headers["mcp-session-id"]}
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    assert httpx.post(f"{server.url}/mcp", json=listing, headers=stolen).status_code == 401
    other = server.key_of("strangers")
    stolen["authorization"] = f"Bearer {other}"
    assert httpx.post(f"{server.url}/mcp", json=listing, headers=stolen).status_code == 404
    assert httpx.delete(f"{server.url}/mcp", headers=stolen).status_code == 404
    pages = {**headers, "authorization": f"Bearer {server.key}", "origin": "https://evil.example"}
    assert httpx.post(f"{server.url}/mcp", json=hello, headers=pages).status_code == 403


@pytest.mark.parametrize("way", ["http", "stdio"])
def test_the_inspector_lists_and_calls(server: Any, way: str) -> None:
    def inspect(*words: str) -> Any:
        if way == "http":
            target = [f"{server.url}/mcp?set=interpreter", "--transport", "http", "--header", f"Authorization: Bearer {server.key}"]
        else:
            target = ["-e", f"BELLGLASS_SERVER={server.url}", "-e", f"BELLGLASS_API_KEY={server.key}", str(server.binary), "mcp"]
        command = [str(inspector()), "--cli", *target, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    tools = inspect("--method", "tools/list")["tools"]
    assert [tool["name"] for tool in tools] == ["execute_python_code"]
    assert tools[0]["inputSchema"]["required"] == ["code"]
    code = "import matplotlib.pyplot as plt; plt.plot([1, 2])"
    result = inspect("--method", "tools/call", "--tool-name", "execute_python_code", "--tool-arg", f"code={code}")
    assert [block["type"] for block in result["content"][:2]] == ["text", "image"]
    assert result["content"][1]["data"].startswith("iVBOR")


def inspector() -> Path:
    """The inspector's program, installed once."""
    home = KEPT / "inspector"
    program = home / "node_modules" / ".bin" / "mcp-inspector"
    if not program.exists():
        home.mkdir(parents=True, exist_ok=True)
        install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(home), INSPECTOR]
        subprocess.run(install, check=True, timeout=300, capture_output=True)
    return program


def any_cancelled(server: Any) -> bool:
    """Whether a run of some session was cancelled."""
    sessions = server.get("/v1/sessions")["items"]
    runs = [run for one in sessions for run in server.get(f"/v1/sessions/{one['id']}/runs")["items"]]
    return any((run.get("outcome") or {}).get("kind") == "cancelled" for run in runs)
