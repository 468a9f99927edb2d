"""IPython's shell, made to speak with the guest: no history, colors, terminal, threads or files of its own."""

import ast
import builtins
import contextlib
import linecache
import os
import signal
import subprocess
import sys

from bellglass_interpreter import errors, figures, packages, results
from bellglass_interpreter.channel import flush
from IPython.core import interactiveshell, page
from IPython.core.autocall import ExitAutocall
from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.formatters import DisplayFormatter
from IPython.core.inputtransformer2 import leading_empty_lines
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from traitlets.config import Config

HIDDEN = (os.path.dirname(interactiveshell.__file__),)
"""Frames of IPython between us and the user's code say nothing to the user."""


class Formatter(DisplayFormatter):
    """IPython's formatter, which also knows figures."""

    def format(self, item, include=None, exclude=None):
        shown = figures.bundle(item)
        if shown is not None:
            return shown, {}
        data, metadata = super().format(item, include=include, exclude=exclude)
        return results.Bundle(data), metadata


class Publisher(DisplayPublisher):
    """Sends displays as results."""

    def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **kwargs):
        more = {}
        if transient and transient.get("display_id") is not None:
            more["id"] = str(transient["display_id"])
        if update:
            more["update"] = True
        results.send("display", data, metadata, **more)

    def clear_output(self, wait=False):
        results.clear(wait)


class Hook(DisplayHook):
    """Sends the value of a cell as a result; `_`, `Out` and the like are IPython's."""

    def write_output_prompt(self):
        pass

    def write_format_data(self, format_dict, md_dict=None):
        results.send("value", format_dict, md_dict)

    def log_output(self, format_dict):
        pass

    def finish_displayhook(self):
        self._is_active = False


class Compiler(CachingCompiler):
    """Names the code of a cell by the number the guest gave it, and shows its lines as they were sent."""

    number = 0

    def cache(self, transformed_code, number=0, raw_code=None):
        name = f"<cell {self.number}>"
        code = transformed_code if raw_code is None else raw_code
        linecache.cache[name] = (len(code), None, [f"{line}\n" for line in code.split("\n")], name)
        self._filename_map[name] = number
        return name


class Exit(ExitAutocall):
    """`exit` and `quit`, with or without a call, end the cell and not the context."""

    def __call__(self, code=None, *rest):
        raise SystemExit(code)


class Shell(InteractiveShell):
    """One shell in a process, made by the parent and used by the fork."""

    compiler_class = Compiler
    cancelled = False
    source = ""
    before_code = None

    async def run_code(self, code_obj, result=None, *, async_=False):
        if self.before_code is not None:
            self.before_code()
        return await super().run_code(code_obj, result, async_=async_)

    def init_display_formatter(self):
        self.display_formatter = Formatter(parent=self)
        self.configurables.append(self.display_formatter)

    def _exiter_default(self):
        return Exit(self)

    def attach(self, module):
        """Makes `module` the place where names of the user are, for a run, where no cell will come."""
        self.user_module = module
        self.user_ns = vars(module)

    @contextlib.contextmanager
    def _tee(self, channel):
        """IPython would keep a copy of all output for a history that nobody reads."""
        yield

    def _format_exception_for_storage(self, exception, *rest, **more):
        return {"ename": type(exception).__name__, "evalue": "", "traceback": []}

    def showtraceback(self, exc_tuple=None, *rest, **more):
        """Tells of an exception as Python does. An exit is no error, and a wrong use of a magic needs no frames."""
        try:
            _, error, _ = self._get_exc_info(exc_tuple)
        except ValueError:
            return
        if isinstance(error, SystemExit):
            return
        if isinstance(error, UsageError):
            print(f"UsageError: {error}", file=sys.stderr)
            errors.send(results.conversation, "UsageError", str(error), [], f"UsageError: {error}\n")
            return
        if isinstance(error, SyntaxError):
            error = errors.as_python_says(error, self.source, f"<cell {self.compile.number}>")
        if self.cancelled and type(error).__name__ == "CancelledError":
            error = KeyboardInterrupt().with_traceback(error.__traceback__)
        packages_note(error)
        errors.report(error, results.conversation, HIDDEN)

    def showsyntaxerror(self, *rest, **more):
        self.showtraceback()

    def showindentationerror(self):
        self.showtraceback()

    def excepthook(self, kind, error, trace):
        self.showtraceback((kind, error, trace))

    def enable_gui(self, gui=None):
        pass

    def enable_matplotlib(self, gui=None):
        """Figures are shown as they are; there is no other way to choose."""
        return None, "inline"

    def system(self, command):
        """Runs a command whose output goes to the streams of this process. An interrupt reaches all it has started."""
        flush()
        process = subprocess.Popen(
            self.var_expand(command, depth=1), shell=True, executable=command_shell(), start_new_session=True
        )
        try:
            status = process.wait()
        except KeyboardInterrupt:
            end_group(process)
            raise
        self.user_ns["_exit_code"] = status

    system_piped = system_raw = system


def packages_note(error):
    missing = sys.modules.get("bellglass_interpreter.missing")
    if missing is not None:
        missing.explain(error)


def command_shell():
    return next((path for path in ("/bin/bash", "/usr/bin/bash") if os.path.exists(path)), None)


def end_group(process):
    """Interrupts a command and all of its session, and ends what does not listen."""
    for number, seconds in ((signal.SIGINT, 1), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
            process.wait(seconds)
            return
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            # The guest interrupts again after a second.
            continue
        except ProcessLookupError:
            return


def keep_lines(lines):
    """Stands in for IPython's removal of empty lines at the start, which would move every line number of the cell."""
    first = next((index for index, line in enumerate(lines) if line.strip()), len(lines))
    if first == 0 or first == len(lines):
        return lines
    if lines[first].startswith("%%"):
        return lines[first:]
    indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
    return [f"{indent}\n", *lines[1:]]


def is_python(lines):
    """Whether a cell is Python as it stands. Where it warns, it is read once only, by the shell itself."""
    source = "".join(lines)
    if "\\" in source:
        return False
    try:
        compile(source, "<cell>", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except Exception:  # noqa: BLE001
        return False
    return True


def run_async(coroutine):
    """Runs a cell that awaits. An interrupt cancels it, or it would go on in the next cell that awaits."""
    from IPython.core.async_helpers import get_asyncio_loop

    shell = current()
    loop = get_asyncio_loop()
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except KeyboardInterrupt:
        if task.done():
            raise
        shell.cancelled = True
        task.cancel()
        return loop.run_until_complete(task)


def pip(line):
    """Installs into the place of the user, and lets this process see it at once."""
    words = line.split(None, 1)
    options = " ".join(packages.command()[4:]) if words[:1] == ["install"] else ""
    rest = words[1] if len(words) > 1 else ""
    os.environ["PIP_BREAK_SYSTEM_PACKAGES"] = "1"
    try:
        current().system(f"{sys.executable} -m pip {words[0] if words else ''} {options} {rest}")
    finally:
        del os.environ["PIP_BREAK_SYSTEM_PACKAGES"]
    packages.found()


def current():
    return Shell._instance


def create():
    """Makes the shell of this process."""
    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "NoColor" if interactiveshell.__dict__.get("PyColorize") else "nocolor"
    config.InteractiveShell.autocall = 0
    config.InteractiveShell.warn_venv = False
    shell = Shell.instance(config=config, display_pub_class=Publisher, displayhook_class=Hook)
    shell.loop_runner = run_async
    transformer = shell.input_transformer_manager
    translate = transformer.do_token_transforms
    # To look for magics token by token takes five times as long as to see that there are none.
    transformer.do_token_transforms = lambda lines: lines if is_python(lines) else translate(lines)
    transforms = transformer.cleanup_transforms
    transforms[:] = [keep_lines if one is leading_empty_lines else one for one in transforms]
    shell.register_magic_function(pip, "line", "pip")
    shell.set_hook("show_in_pager", page.as_hook(page.display_page), 90)
    builtins.display = display
    builtins.get_ipython = shell.get_ipython
    interactiveshell.warn = quiet_exit(interactiveshell.warn)
    forget_at_exit(shell)
    return shell


def forget_at_exit(shell):
    """Nothing of the shell is worth an exit function: it has no history and no files."""
    import atexit

    atexit.unregister(shell.atexit_operations)


def quiet_exit(warn):
    """IPython's advice how to leave it is of no use to those who just called exit."""

    def quiet(message, *rest, **more):
        if not str(message).startswith("To exit:"):
            warn(message, *rest, **more)

    return quiet
