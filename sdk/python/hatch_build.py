"""Puts a built `belljar` into the wheel, if `BELLJAR_WHEEL_BINARY` names one. Without it the wheel is pure Python."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MACHINES = {62: "x86_64", 183: "aarch64"}
"""By the number in an ELF header."""


class BinaryHook(BuildHookInterface[Any]):
    """What hatchling asks before it makes a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the program as a script of the wheel, which then fits the machines that the program fits."""
        binary = os.environ.get("BELLJAR_WHEEL_BINARY")
        if binary and self.target_name == "wheel" and version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_of(Path(binary).read_bytes())}"
            build_data["shared_scripts"] = {binary: "belljar"}


def platform_of(program: bytes) -> str:
    """The platform tag of a program for Linux: its machine, and the newest glibc whose symbols it asks for."""
    if program[:4] != b"\x7fELF":
        raise ValueError("this is no program for Linux")
    machine = MACHINES[int.from_bytes(program[18:20], "little")]
    needed = [(int(major), int(minor)) for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", program)]
    if not needed:
        # A static program asks for nothing.
        return f"manylinux_2_17_{machine}.musllinux_1_1_{machine}"
    major, minor = max(*needed, (2, 17))
    return f"manylinux_{major}_{minor}_{machine}"
