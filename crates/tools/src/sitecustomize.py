"""Python imports this when it starts. Figures that are still open when the code has ended are saved beside it."""

import os
import sys
import threading

# What the code starts itself is its own business.
os.environ.pop("PYTHONPATH", None)
sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(__file__)]


def save_figures():
    """Saves each open figure. One that cannot be saved leaves the others, and the run, as they are."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    for count, number in enumerate(pyplot.get_fignums(), start=1):
        try:
            pyplot.figure(number).savefig(f"/workspace/figure_{count}.png", dpi=150, bbox_inches="tight")
        except Exception as error:  # noqa: BLE001
            print(f"figure_{count}.png could not be saved: {error}", file=sys.stderr)


def when_the_code_has_ended(act):
    """Has it done when the main thread ends: matplotlib forgets its figures in an `atexit` of its own, which is run before ours."""
    process = os.getpid()
    register = getattr(threading, "_register_atexit", None)
    if register is None:
        import atexit

        register = atexit.register
    # A child that was forked ends as well.
    register(lambda: act() if os.getpid() == process else None)


when_the_code_has_ended(save_figures)
