"""Build a wheel that includes a compiled `bellglass`: `python build_wheel.py PATH [--out DIRECTORY]`.

Requires the Python package `build`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Build the wheel and print its path."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", type=Path, help="the `bellglass` executable, without debug information")
    parser.add_argument("--out", type=Path, default=HERE / "dist", help="output directory")
    asked = parser.parse_args()
    binary = asked.binary.resolve(strict=True)
    if not os.access(binary, os.X_OK):
        parser.error(f"{binary} is not executable")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", asked.out, HERE],
        env={**os.environ, "BELLGLASS_WHEEL_BINARY": str(binary)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    print(max(asked.out.glob("bellglass-*-py3-none-*linux*.whl"), key=lambda wheel: wheel.stat().st_mtime))


if __name__ == "__main__":
    main()
