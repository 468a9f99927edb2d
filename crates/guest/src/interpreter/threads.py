"""How many threads the linear algebra uses: one while the parent imports, the sandbox's share in a fork.

A library that starts its threads at import would make the parent unfit for forking, and a library that was told "one"
at import would stay with one for ever. So the functions that set the number are looked up once. The parent calls them
with the usual number, which starts threads, and forks, which ends them; from then on every fork has that number and no
threads until it needs them. New threads spin before they sleep: on two processors they double the time of a short run.
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
state = {"number": 1, "wish": None}
"""`number`: what forks begin with. `wish`: what this fork is to have instead, as soon as there is a reason."""


def number_in(environment):
    wish = environment.get("OMP_NUM_THREADS", "")
    return int(wish) if re.fullmatch("[1-9][0-9]{0,3}", wish) else None


def keep_to_one():
    """For the time of the imports. The number that forks are to have is remembered."""
    state["number"] = min(number_in(os.environ) or 1, os.cpu_count() or 1)
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


def set_ahead():
    """Sets the number of all forks to come."""
    if state["number"] == 1 or not setters:
        return
    for setter in setters:
        setter(state["number"])
    ended = os.fork()
    if ended == 0:
        os._exit(0)
    os.waitpid(ended, 0)


def want(environment):
    """Remembers the number that the user wants, if it is another one."""
    wish = number_in(environment)
    state["wish"] = wish if wish != state["number"] else None


def expect(code, modules):
    """Sets the user's number if the code names any of the loaded modules."""
    if state["wish"] and any(name in code for name in modules):
        apply()


def apply():
    """Sets the user's number, once. Imports of what the parent has not loaded lead here too."""
    wish, state["wish"] = state["wish"], None
    if wish:
        for setter in setters:
            setter(wish)
