"""A context: a process that stays and runs cells in order, one at a time, with IPython."""

import importlib
import os
import signal
import sys
from contextlib import suppress

from bellglass_interpreter import (
    ending,
    errors,
    figures,
    identity,
    missing,
    packages,
    results,
    shadow,
    threads,
    variables,
    warm,
)
from bellglass_interpreter.channel import flush

INTERRUPTED = 130


class Interrupts:
    """What SIGINT means: the end of the cell that runs, and nothing at all where none does.

    One handler stays for good and asks where we are, because exchanging handlers leaves moments in which an interrupt
    would be raised in code of ours.
    """

    def __init__(self, channel):
        self.channel = channel
        self.in_cell = False
        self.due = False
        self.raised = False
        self.install()
        identity.take_interrupts()

    def install(self):
        """Takes the signal back from whatever a cell has done with it."""
        while signal.getsignal(signal.SIGINT) != self.handle:
            # A handler of the user's may run one last time here, and raise.
            with suppress(BaseException):
                signal.signal(signal.SIGINT, self.handle)

    def handle(self, number, frame):
        if self.in_cell:
            self.raised = True
            raise KeyboardInterrupt
        # The guest sends a cell before it interrupts it. If there is one to read, the interrupt is meant for that one.
        if self.channel.is_asked():
            self.due = True

    def enter(self):
        """From here on an interrupt is raised; also one that came while the cell was on its way.

        The shell calls this where the user's code begins. Its own steps before that would swallow an interrupt.
        """
        self.in_cell = True
        if self.due:
            self.due = False
            self.raised = True
            raise KeyboardInterrupt

    def leave(self):
        self.in_cell = False

    def forget(self):
        """Right before an answer: an interrupt from here on is too late, and not meant for what is asked next."""
        self.channel.asked = False
        self.due = False


def main(channel, plain=False):
    """Serves cells until the guest has no more. Does not return."""
    shell = results.shell()
    if shell is None:
        channel.tell({"refused": {"errno": 2, "message": "contexts require IPython, which cannot be imported"}})
        os._exit(127)
    if not plain:
        shadow.replace_if_needed("context", channel, [])
    results.begin(channel)
    start(shell)
    context = Context(channel, shell)
    # The guest waits for this: a context that cannot begin is none.
    channel.tell({"begun": {}})
    while True:
        record = channel.next()
        if "cell" in record:
            context.serve(record["cell"])
        elif "variables" in record:
            listing = variables.listing(shell)
            context.interrupts.forget()
            channel.tell({"variables": listing})
        elif "settle" in record:
            # The guest has interrupted a cell that was ending. Whatever came of that is over before the next.
            context.interrupts.forget()
            channel.tell({"settled": {}})


def start(shell):
    """Finishes what the parent could not: the shell's module is `__main__`, and frames are as wide as in notebooks."""
    sys.modules["__main__"] = shell.user_module
    pandas = sys.modules.get("pandas")
    if pandas is not None and pandas.get_option("display.max_columns") == 0:
        pandas.set_option("display.max_columns", 20)


class Context:
    """The cells of one context."""

    def __init__(self, channel, shell):
        self.channel = channel
        self.shell = shell
        self.interrupts = Interrupts(channel)
        shell.before_code = self.interrupts.enter

    def serve(self, cell):
        """One cell, from its variables to `done`. Whatever happens in it, the context goes on."""
        before = dict(os.environ)
        os.environ.update(cell.get("env") or {})
        results.begin(self.channel)
        self.interrupts.raised = False
        try:
            code, exited = self.attempt(cell)
        except KeyboardInterrupt:
            code, exited = INTERRUPTED, False
        except BaseException as error:  # noqa: BLE001
            errors.report(error, self.channel, self.hidden())
            code, exited = 1, False
        self.interrupts.leave()
        self.interrupts.install()
        missing.stop()
        if not self.channel.ours():
            # User code forked, and this is the other process: it has no cells to serve.
            ending.finish(code)
        restore(before, cell.get("env") or {})
        flush()
        self.interrupts.forget()
        self.channel.tell({"done": {"code": code, "exit": exited}})

    def attempt(self, cell):
        """Everything of a cell that may be interrupted."""
        try:
            self.interrupts.enter()
            try:
                packages.require(cell.get("requirements") or [], cell.get("install_ms"))
                packages.fork.add_user_site()
            except packages.InstallationError as error:
                error.report(self.channel)
                return 1, False
            self.interrupts.leave()
            self.channel.tell({"begun": {}})
            return self.run(cell)
        except KeyboardInterrupt as error:
            self.interrupts.leave()
            errors.report(error, self.channel, self.hidden())
            return INTERRUPTED, False
        finally:
            self.interrupts.leave()

    def run(self, cell):
        shell, code = self.shell, cell["code"]
        shell.compile.number = cell["number"]
        shell.execution_count = cell["number"]
        shell.cancelled = False
        shell.source = code
        threads.expect(code, warm.state["modules"])
        if cell.get("install_missing"):
            missing.install_for(
                self.transformed(code), f"<cell {cell['number']}>", self.channel, cell.get("install_ms")
            )
        result = shell.run_cell(code, store_history=True)
        figures.finish()
        return outcome(result, self.interrupts.raised)

    def transformed(self, code):
        try:
            return self.shell.transform_cell(code)
        except Exception:  # noqa: BLE001
            return code

    def hidden(self):
        module = importlib.import_module("bellglass_interpreter.shell")
        return module.HIDDEN


def outcome(result, interrupted):
    """The code of a cell, and whether it asked to exit. One that failed after an interrupt failed because of it."""
    error = result.error_before_exec or result.error_in_exec
    if error is None:
        return 0, False
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF, True
        print(error.code, file=sys.stderr)
        return 1, True
    if interrupted or isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, False
    return 1, False


def restore(before, changed):
    """Takes back the variables of one cell. What the cell itself has set stays."""
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            os.environ.pop(name, None)
