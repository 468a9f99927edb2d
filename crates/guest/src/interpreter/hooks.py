"""Small changes to libraries, made right after they are imported, whoever imports them and whenever."""

import importlib.util
import os
import sys
from contextlib import suppress

from bellglass_interpreter import figures, threads


def matplotlib(module):
    """Figures are drawn without a window, unless the user says otherwise."""
    if not os.environ.get("MPLBACKEND"):
        module.rcParams["backend"] = "Agg"


def plotly(module):
    """`show` displays and never opens a browser. The library asks for nbformat only to look at its version."""
    if module.ipython_display is None:
        return
    if module.nbformat is None:
        module.nbformat = type(sys)("nbformat")
        module.nbformat.__version__ = "5.0"
    known = module.renderers._renderers
    for name in ("browser", "chrome", "chromium", "firefox", "iframe", "iframe_connected", "notebook"):
        if name in known:
            known[name] = known["colab"]
    if "PLOTLY_RENDERER" not in os.environ:
        module.renderers.default = "plotly_mimetype+colab"


def pillow(module):
    """`show` displays and never starts a viewer."""
    if hasattr(module, "IPythonViewer"):
        module.register(module.IPythonViewer, 0)


AFTER = {
    "PIL.ImageShow": pillow,
    "matplotlib": matplotlib,
    "matplotlib.backend_bases": figures.use,
    "plotly.io._renderers": plotly,
}


class Loader:
    """Loads a module by its own loader and then changes it."""

    def __init__(self, inner, change):
        self.inner = inner
        self.change = change

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.inner
        self.inner.exec_module(module)
        # A version that looks different works as it would without us.
        with suppress(Exception):
            self.change(module)


class Finder:
    """Stands before the others on the path of finders, for the few names it knows, each once."""

    def __init__(self):
        self.busy = set()

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in sys.stdlib_module_names:
            threads.apply()
        if name not in AFTER or name in self.busy:
            return None
        self.busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader, AFTER[name])
        return spec


def install():
    sys.meta_path.insert(0, Finder())
