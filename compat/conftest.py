"""A real server for the tests, with a data directory of its own.

    python3 -m venv compat-venv && compat-venv/bin/pip install -r compat/requirements.txt
    sudo -E compat-venv/bin/pytest compat

`BELLGLASS_BINARY` names its program, `BELLGLASS_TEST_DATA` a data directory whose templates are lent to it.
"""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[1]
BINARY = Path(os.environ.get("BELLGLASS_BINARY", ROOT / "target/tried/bellglass"))
TEMPLATES = Path(os.environ.get("BELLGLASS_TEST_DATA", "/var/tmp/bellglass-test"))
SETS = ("analysis", "python")
"""Tool sets whose templates may not have been built; `interpreter` then stands in, which has more in it."""
ENDS_WITHIN = 30


class Server:
    """A running server."""

    def __init__(self, certificate: Path | None = None, **config: str) -> None:
        """A server with these lines of configuration, whose certificate is to be trusted if it has one."""
        self.binary = BINARY
        self.data = Path(tempfile.mkdtemp(prefix="bellglass-compat-"))
        # Processes of sandboxes walk through it.
        self.data.chmod(0o711)
        self._lend()
        first_key = self.data / "first.key"
        (self.data / "serve.toml").write_text("".join(f'{name} = "{value}"\n' for name, value in config.items()))
        words = [BINARY, "--data", self.data, "serve", "--config", self.data / "serve.toml"]
        words += ["--listen", "127.0.0.1:0", "--first-key", first_key]
        with (self.data / "serve.log").open("w") as log:
            self._child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={name: value for name, value in os.environ.items() if not name.startswith("BELLGLASS_")},
            )
        self.url = self._address()
        self.key = first_key.read_text().strip()
        trusted: Any = ssl.create_default_context(cafile=certificate) if certificate else True
        headers = {"authorization": f"Bearer {self.key}"}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=60, verify=trusted)

    def get(self, path: str) -> Any:
        """What it answers to a question."""
        return self._http.get(path).raise_for_status().json()

    def key_of(self, project: str, **quota: Any) -> str:
        """A key of another project, which is made."""
        self._http.put(f"/v1/projects/{project}", json={"quota": quota}).raise_for_status()
        body = {"project": project, "role": "admin", "label": ""}
        made = self._http.post("/v1/keys", json=body).raise_for_status()
        return str(made.json()["secret"])

    def tools(self, set: str, format: str) -> list[dict[str, Any]]:
        """The tools of a set, as they are published."""
        tools: list[dict[str, Any]] = self.get(f"/v1/tools?set={set}&format={format}")
        return tools

    def end(self) -> None:
        """Ends its sandboxes and itself."""
        for sandbox in self.get("/v1/sandboxes")["items"]:
            self._http.delete(f"/v1/sandboxes/{sandbox['id']}")
        self._http.close()
        self._child.terminate()
        try:
            self._child.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        shutil.rmtree(self.data, ignore_errors=True)

    def _lend(self) -> None:
        """Templates are copied, their layers are not."""
        (self.data / "layers").mkdir(mode=0o711)
        for layer in (TEMPLATES / "layers").iterdir():
            (self.data / "layers" / layer.name).symlink_to(layer)
        templates = self.data / "templates"
        shutil.copytree(TEMPLATES / "templates", templates)
        for name in SETS:
            if not (templates / f"{name}.json").exists():
                text = (templates / "interpreter.json").read_text()
                (templates / f"{name}.json").write_text(text.replace('"interpreter"', f'"{name}"'))

    def _address(self) -> str:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith("bellglass serves "):
                return line.removeprefix("bellglass serves ").strip()
        self._child.wait()
        raise AssertionError((self.data / "serve.log").read_text())


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.end()
