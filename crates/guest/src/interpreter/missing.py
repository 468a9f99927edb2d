"""Installing a module at the moment the user's code imports it, where the request allows that."""

import ast
import importlib
import importlib.machinery
import sys

from bellglass_interpreter import packages

PACKAGES = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "Bio": "biopython",
    "Crypto": "pycryptodome",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "discord": "discord.py",
    "dns": "dnspython",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "ffmpeg": "ffmpeg-python",
    "fitz": "pymupdf",
    "flask_cors": "flask-cors",
    "git": "gitpython",
    "github": "pygithub",
    "google.cloud.bigquery": "google-cloud-bigquery",
    "google.cloud.storage": "google-cloud-storage",
    "google.genai": "google-genai",
    "google.generativeai": "google-generativeai",
    "google.protobuf": "protobuf",
    "googleapiclient": "google-api-python-client",
    "igraph": "python-igraph",
    "jose": "python-jose",
    "jwt": "pyjwt",
    "Levenshtein": "levenshtein",
    "magic": "python-magic",
    "mpl_toolkits": "matplotlib",
    "MySQLdb": "mysqlclient",
    "multipart": "python-multipart",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "pkg_resources": "setuptools",
    "pptx": "python-pptx",
    "psycopg2": "psycopg2-binary",
    "pylab": "matplotlib",
    "pythoncom": "pywin32",
    "rest_framework": "djangorestframework",
    "sentence_transformers": "sentence-transformers",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "slugify": "python-slugify",
    "telegram": "python-telegram-bot",
    "umap": "umap-learn",
    "usb": "pyusb",
    "websocket": "websocket-client",
    "wx": "wxpython",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
"""Names of packages that differ from the name of the module they are imported by."""

CAUGHT = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


class Finder:
    """Stands after all other finders, so what it is asked for is nowhere."""

    def __init__(self):
        self.wanted = {}
        self.tried = {}
        self.channel = None
        self.limit_ms = None

    def find_spec(self, name, path=None, target=None):
        if name not in self.wanted or name in self.tried or not asked_by_user():
            return None
        package = self.wanted[name]
        self.tried[name] = None
        try:
            packages.install([package], self.limit_ms)
        except packages.InstallationError as error:
            self.tried[name] = f"the package {package} could not be installed: {error}"
            result = {"kind": "not_installed", "module": name, "package": package, "why": str(error)}
            self.channel.result(result)
            return None
        self.channel.result({"kind": "installed", "packages": [{"module": name, "package": package}]})
        return importlib.machinery.PathFinder.find_spec(name, path, target)


finder = Finder()


def install_for(code, file, channel, limit_ms):
    """From here on, modules that this code imports are installed if they are missing."""
    finder.wanted = wanted(code, file)
    finder.tried = {}
    finder.channel = channel
    finder.limit_ms = limit_ms
    if finder not in sys.meta_path:
        sys.meta_path.append(finder)


def stop():
    finder.wanted, finder.tried = {}, {}


def asked_by_user():
    """Whether an import statement of the user's own code is what leads here."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(("<frozen importlib", "<bellglass_interpreter")):
            return frame.f_globals.get("__name__") == "__main__"
        frame = frame.f_back
    return False


def wanted(code, file):
    """Modules by name, with the package to install, that the code imports and has no other plan for."""
    try:
        tree = compile(code, file, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found = {}
    for module in imports(tree):
        parts = module.split(".")
        prefixes = [".".join(parts[: index + 1]) for index in range(len(parts))]
        known = next((prefix for prefix in reversed(prefixes) if prefix in PACKAGES), prefixes[0])
        for prefix in prefixes[: prefixes.index(known) + 1]:
            found.setdefault(prefix, PACKAGES.get(known, known))
    return found


def imports(node):
    """Names of modules in import statements, except those inside a block whose failure the code handles itself."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        if node.module and not node.level:
            yield node.module
            yield from (
                f"{node.module}.{alias.name}" for alias in node.names if f"{node.module}.{alias.name}" in PACKAGES
            )
    else:
        guarded = node.body if handles_missing(node) else ()
        for child in ast.iter_child_nodes(node):
            if not any(child is one for one in guarded):
                yield from imports(child)


def handles_missing(node):
    """Whether a statement goes on when an import in its body fails."""
    if isinstance(node, ast.Try):
        return any(handler.type is None or names_of(handler.type) & CAUGHT for handler in node.handlers)
    if isinstance(node, ast.With):
        calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
        return any("suppress" in names_of(call.func) for call in calls)
    return False


def names_of(node):
    return {
        part.id if isinstance(part, ast.Name) else part.attr
        for part in ast.walk(node)
        if isinstance(part, (ast.Name, ast.Attribute))
    }


def explain(error):
    """Adds to the failure of an import what was tried for it."""
    note = finder.tried.get(getattr(error, "name", None)) if isinstance(error, ModuleNotFoundError) else None
    if note is None:
        return
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        error.msg = f"{error.msg}\n{note}"
