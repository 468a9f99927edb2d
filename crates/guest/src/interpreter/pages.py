"""Huge pages for what the parent holds: a fork copies one entry for each instead of 512, and gives back as few."""

import contextlib
import ctypes

from bellglass_interpreter.identity import libc

HUGE = 2 << 20
MADV_COLLAPSE = 25


def blocks():
    """Aligned blocks of the memory that Python's objects are in."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            place, rights, _, _, _, *name = line.split()
            if not rights.startswith("rw") or (name and name != ["[heap]"]):
                continue
            first, end = (int(address, 16) for address in place.split("-"))
            yield from range(-(-first // HUGE) * HUGE, end // HUGE * HUGE, HUGE)


def collapse():
    """Asks the kernel for them. Kernels before 6.1 and those in user space know no such wish; then all stays as it is."""
    with contextlib.suppress(OSError):
        for block in blocks():
            libc.madvise(ctypes.c_void_p(block), ctypes.c_size_t(HUGE), MADV_COLLAPSE)
