"""Installing packages: where the user may write, found by every later Python of the user, within a time limit."""

import importlib
import importlib.metadata
import os
import re
import signal
import subprocess
import sys

from bellglass_interpreter import errors, fork
from bellglass_interpreter.channel import flush

WORKSPACE = "/workspace"
FILE = "requirements.txt"
DEFAULT_MS = 120_000
PLAIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:==([A-Za-z0-9.!+_-]+))?")
ARCHIVES = (".whl", ".zip", ".tar.gz", ".tar.bz2", ".tar.xz", ".tgz")


class InstallationError(Exception):
    """An installation that did not work, with what the installer said about it."""

    def report(self, channel):
        text = f"Failed to install requirements: {self}"
        sys.stderr.write(text)
        flush()
        errors.send(channel, "InstallationError", str(self), [], text)


def require(entries, limit_ms):
    """Makes sure that everything named is installed. Nothing is started for what is there already."""
    if not entries:
        return
    for entry in entries:
        reason = refused(entry)
        if reason:
            raise InstallationError(f"{entry!r} is refused: {reason}")
    text = "".join(f"{entry}\n" for entry in entries)
    show(text)
    if not all(map(installed, entries)):
        install_listed(text, limit_ms)


def refused(entry):
    """Why an entry is not a plain name of a package with versions, or None."""
    text = entry.strip()
    if text.startswith("-") or re.search(r"\s-", text):
        return "installer options are not allowed"
    if "://" in text or " @ " in text:
        return "URLs are not allowed"
    if text.startswith(".") or "/" in text or "\\" in text or text.lower().endswith(ARCHIVES):
        return "paths are not allowed"
    if "\n" in entry or "\r" in entry or "$" in entry:
        return "each entry must name one package"
    return None


def show(text):
    """Writes the list where the user can see it."""
    for directory in (WORKSPACE, "."):
        path = os.path.join(directory, FILE)
        try:
            with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
            return
        except OSError as error:
            failure = error
    raise InstallationError(f"cannot write {path}: {failure.strerror}")


def install_listed(text, limit_ms):
    """Installs what is listed. The installer has a list of its own: the one that is shown may be another run's by then."""
    descriptor = os.memfd_create(FILE)
    try:
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape", closefd=False) as file:
            file.write(text)
        install(["-r", f"/proc/self/fd/{descriptor}"], limit_ms, (descriptor,))
    finally:
        os.close(descriptor)


def installed(entry):
    """Whether a plain entry is there already. Whatever is not plain is for the installer to decide."""
    match = PLAIN.fullmatch(entry.strip())
    if not match:
        return False
    try:
        version = importlib.metadata.version(match.group(1))
    except Exception:  # noqa: BLE001
        return False
    return match.group(2) in (None, version)


def command():
    """The installer, for the place that belongs to the user."""
    user = ["--user"] if fork.user_site() else []
    return [sys.executable, "-m", "pip", "install", *user, "--disable-pip-version-check", "--no-input"]


def environment():
    """The user's variables, and that a system which wants no packages beside its own is not what is changed here."""
    return {**os.environ, "PIP_BREAK_SYSTEM_PACKAGES": "1"}


def install(arguments, limit_ms, descriptors=()):
    """Runs the installer. It stands in the root directory, where no file of the user gets in its way."""
    limit = (limit_ms or DEFAULT_MS) / 1000
    try:
        process = subprocess.Popen(
            [*command(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=environment(),
            start_new_session=True,
            pass_fds=descriptors,
        )
    except OSError as error:
        raise InstallationError(f"cannot start the installer: {error}") from None
    try:
        output, complaints = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise InstallationError(f"timed out after {limit:g} seconds") from None
    finally:
        stop(process)
    if process.returncode != 0:
        raise InstallationError((complaints or output).decode("utf-8", "replace"))
    found()


def stop(process):
    """Ends the installer and what it has started, if it is still there: time over, or an interrupt."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        process.stdout.close()
        process.stderr.close()


def found():
    """Lets this process see what was just installed."""
    fork.add_user_site()
    importlib.invalidate_caches()
