"""Code generators accept docs/openapi.json, and what they generate compiles.

`openapi-typescript` describes types; `openapi-python-client` writes a client, which is then used against a real server.
"""

from __future__ import annotations

import json
from pathlib import Path

import environments
from conftest import ROOT, Server

DESCRIPTION = ROOT / "docs/openapi.json"
HERE = Path(__file__).parent / "openapi"
TYPESCRIPT = ("openapi-typescript@7.13.0", "typescript@5.9.3")
PYTHON = ("openapi-python-client==0.29.1", "ruff==0.17.5", "mypy==2.4.1")


def test_the_types_of_openapi_typescript_compile(tmp_path: Path) -> None:
    installed = environments.javascript("openapi-typescript", *TYPESCRIPT)
    programs = installed / "node_modules" / ".bin"
    types = tmp_path / "bellglass.ts"
    run(programs / "openapi-typescript", DESCRIPTION, "-o", types)
    (tmp_path / "uses.ts").write_text((HERE / "uses.ts").read_text())
    compiler = (programs / "tsc", "--noEmit", "--strict", "--target", "es2022", "--moduleResolution", "bundler")
    compiler = (*compiler, "--module", "esnext", "--noUncheckedIndexedAccess")
    run(*compiler, tmp_path / "uses.ts")
    # Control: a wrong type is an error.
    (tmp_path / "wrong.ts").write_text((HERE / "uses.ts").read_text() + "\nexport const wrong: Sandbox = 1;\n")
    assert "wrong.ts" in run(*compiler, tmp_path / "wrong.ts", code=2)


def test_the_client_of_openapi_python_client_compiles_and_works(server: Server, tmp_path: Path) -> None:
    python = environments.python("openapi-python-client", *PYTHON)
    generate = (python.parent / "openapi-python-client", "generate", "--path", DESCRIPTION, "--meta", "none")
    generate = (*generate, "--fail-on-warning")
    config = HERE / "openapi-python-client.yml"
    run(*generate, "--config", config, "--output-path", tmp_path / "generated", beside=python)
    run(python, "-m", "mypy", "--config-file", HERE / "mypy.ini", "generated", at=tmp_path)
    printed = run(python, HERE / "uses.py", server.url, server.key, at=tmp_path)
    assert json.loads(printed) == {"template": "base", "outcome": 3, "content": "written\n", "error": "not_found"}
    # Control: without the overrides, operations are left out.
    left_out = run(*generate, "--output-path", tmp_path / "without", beside=python, code=1)
    assert "application/x-ndjson" in left_out


def run(*words: str | Path, at: Path | None = None, beside: Path | None = None, code: int = 0) -> str:
    """Runs a program that sees only its own packages, and those in the directory `at`."""
    variables = {"PYTHONPATH": str(at)} if at else {}
    if beside:
        variables["PATH"] = f"{beside.parent}:{environments.environment()['PATH']}"
    return environments.run(*words, at=at, env=environments.environment(**variables), code=code)
