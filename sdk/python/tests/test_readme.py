"""Tests that the README examples work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Server

README = (Path(__file__).parents[1] / "README.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(example: str, server: Server, tmp_path: Path) -> None:
    environment = {**os.environ, "BELLGLASS_SERVER": server.url, "BELLGLASS_API_KEY": server.key}
    subprocess.run([sys.executable, "-c", example], env=environment, cwd=tmp_path, check=True, timeout=100)
