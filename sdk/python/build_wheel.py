"""Makes a wheel that carries a built `belljar`: `python build_wheel.py PATH [--out DIRECTORY]`. Needs `build`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Makes it, and writes where it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", type=Path, help="the program to put into it, without debug information")
    parser.add_argument("--out", type=Path, default=HERE / "dist", help="where the wheel goes")
    asked = parser.parse_args()
    binary = asked.binary.resolve(strict=True)
    if not os.access(binary, os.X_OK):
        parser.error(f"{binary} cannot be run")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", asked.out, HERE],
        env={**os.environ, "BELLJAR_WHEEL_BINARY": str(binary)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    print(max(asked.out.glob("belljar-*-py3-none-*linux*.whl"), key=lambda wheel: wheel.stat().st_mtime))


if __name__ == "__main__":
    main()
