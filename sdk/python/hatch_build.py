"""Build hook that adds a compiled `bellglass` executable to the wheel.

The environment variable `BELLGLASS_WHEEL_BINARY` is the path of the executable. If it is not set, the wheel is pure Python.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MACHINES = {62: "x86_64", 183: "aarch64"}
"""Machine names by their number in the ELF header."""


class BinaryHook(BuildHookInterface[Any]):
    """The hook that hatchling calls before it builds a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the executable to the wheel as a script, and tag the wheel with the platform of the executable."""
        binary = os.environ.get("BELLGLASS_WHEEL_BINARY")
        if binary and self.target_name == "wheel" and version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_of(Path(binary).read_bytes())}"
            build_data["shared_scripts"] = {binary: "bellglass"}


def platform_of(program: bytes) -> str:
    """Return the platform tag of a Linux executable: its machine, and the newest glibc version that it requires."""
    if program[:4] != b"\x7fELF":
        raise ValueError("the file is not a Linux executable")
    machine = MACHINES[int.from_bytes(program[18:20], "little")]
    needed = [(int(major), int(minor)) for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", program)]
    if not needed:
        # A static executable requires no glibc.
        return f"manylinux_2_17_{machine}.musllinux_1_1_{machine}"
    major, minor = max(*needed, (2, 17))
    return f"manylinux_{major}_{minor}_{machine}"
