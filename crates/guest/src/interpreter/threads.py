"""How many threads the linear algebra uses: one while the parent imports, the sandbox's share in a fork.

A library that starts its threads at import would make the parent unfit for forking, and a library that was told "one"
at import would stay with one for ever. So the functions that set the number are looked up once and called in each fork.
"""

import ctypes
import os
import re

VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
)
LIBRARY = re.compile(r"\S*/[^/\s]*(?:openblas|libgomp|libomp|libiomp)[^/\s]*\.so[^/\s]*$")
SYMBOLS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
    "omp_set_num_threads",
)

setters = []
state = {"wish": None}


def keep_to_one():
    for name in VARIABLES:
        os.environ[name] = "1"


def find():
    """Finds the functions in the libraries that are loaded by now."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        paths = {match.group().strip() for match in map(LIBRARY.search, map(str.rstrip, file)) if match}
    for path in sorted(paths):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        found = next((symbol for symbol in SYMBOLS if hasattr(library, symbol)), None)
        if found:
            setters.append(getattr(library, found))


def want(environment):
    """Remembers OMP_NUM_THREADS of the user. New threads spin before they sleep, so they wait for a reason."""
    wish = environment.get("OMP_NUM_THREADS", "")
    state["wish"] = int(wish) if wish.isdigit() and int(wish) > 1 else None


def expect(code, modules):
    """Sets the number if the code names any of the loaded modules."""
    if state["wish"] and any(name in code for name in modules):
        apply()


def apply():
    """Sets the number, once. Imports of what the parent has not loaded lead here too."""
    wish, state["wish"] = state["wish"], None
    if wish:
        for setter in setters:
            setter(wish)
