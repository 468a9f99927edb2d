"""Figures of matplotlib: found without the user saving them, sent as pictures with the data they show.

Nothing here imports matplotlib. Code that does not use it pays one look into a dictionary.
"""

import io
import sys

DPI = 150

shown = {"count": 0, "figures": {}}
"""`count`: how many figures this run or cell has shown. `figures`: those shown while still open, by identity."""


def begin():
    shown["count"] = 0
    shown["figures"].clear()


def is_figure(item):
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(item, module.Figure)


def bundle(figure):
    """The next figure as data by MIME type with its name and chart; None where it is no figure or cannot be drawn."""
    if not is_figure(figure):
        return None
    from bellglass_interpreter import charts, results

    file = io.BytesIO()
    try:
        figure.savefig(file, format="png", dpi=DPI, bbox_inches="tight")
    except Exception as error:  # noqa: BLE001
        print(f"warning: a figure could not be drawn: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    shown["count"] += 1
    shown["figures"][id(figure)] = figure
    extra = {"name": f"figure_{shown['count']}.png"}
    chart = charts.of(figure)
    if chart is not None:
        extra["chart"] = chart
    figure.stale = False
    return results.Bundle({"text/plain": repr(figure), "image/png": file.getvalue()}, extra)


def open_managers():
    helpers = sys.modules.get("matplotlib._pylab_helpers")
    return list(helpers.Gcf.get_all_fig_managers()) if helpers and helpers.Gcf.figs else []


def show_open():
    """Shows every open figure in order, except those shown since they last changed, and closes all."""
    for manager in open_managers():
        show(manager)


def show(manager):
    from bellglass_interpreter import results

    figure = manager.canvas.figure
    if id(figure) not in shown["figures"] or figure.stale:
        data = bundle(figure)
        if data is not None:
            results.send("display", data)
    shown["figures"].pop(id(figure), None)
    sys.modules["matplotlib._pylab_helpers"].Gcf.destroy(manager)


def finish():
    """At the end of a run or a cell. A fault in here is a line on standard error and no more."""
    try:
        show_open()
    except Exception as error:  # noqa: BLE001
        print(f"warning: figures could not be shown: {type(error).__name__}: {error}", file=sys.stderr)


def pyplot_show(cls=None, *, block=None):
    """Stands in for the `show` of pyplot on backends without a window. One that need not block leaves figures open."""
    if block is not False:
        show_open()


def use(backend_bases):
    """Makes `plt.show()` and `figure.show()` of every backend without a window show figures as results."""
    manager = backend_bases.FigureManagerBase
    if hasattr(manager, "pyplot_show"):
        manager.pyplot_show = classmethod(pyplot_show)
    manager.show = show
