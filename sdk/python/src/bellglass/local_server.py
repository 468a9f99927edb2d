"""A local server for processes without a configured server. It and its sandboxes stop when the process ends.

A shell script, the keeper, starts the server and reads from a pipe whose writing end belongs to the process. When the
process ends, even by SIGKILL, the keeper reads end-of-file. It then stops the sandboxes, stops the server and removes its
data. A parent-death signal would stop the server but not the sandboxes, and it is sent when a thread ends,
not when the process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import httpx

from .client import Default
from .errors import BellglassError

STARTS_WITHIN = 60.0
"""Timeout for starting the server on a loaded machine, in seconds."""
ENDS_WITHIN = 60.0
"""Timeout for stopping the sandboxes and the server, in seconds."""
LOG_SHOWN = 2000
"""Length of the quoted end of the log if the server fails to start, in characters."""
KEEPER = """
binary=$1 data=$2 own=$3
"$binary" --data "$data" serve --listen 127.0.0.1:0 --first-key "$data/first.key" </dev/null 2>>"$data/serve.log" &
server=$!
exec >/dev/null
read -r url || :
read -r nothing || :
case $url in http*)
  export BELLGLASS_SERVER="$url"
  ids=$("$binary" --key-file "$data/first.key" --server-wait 5s list --quiet)
  [ -z "$ids" ] || "$binary" --key-file "$data/first.key" --server-wait 5s stop $ids
  ;;
esac
kill -TERM $server
wait $server
[ "$own" = no ] || rm -rf --one-file-system "$data"
"""


class NoServer(BellglassError):
    """The local server could not be started."""


class LocalServer:
    """A server started by this process."""

    def __init__(self, data: Path, own: bool, binary: Path) -> None:
        #: The data directory.
        self.data = data
        self._process = os.getpid()
        # With these variables set, the program would use another server instead of starting one.
        named = ("BELLGLASS_SERVER", "BELLGLASS_API_KEY", "BELLGLASS_DATA")
        environment = {name: value for name, value in os.environ.items() if name not in named}
        self._keeper = subprocess.Popen(
            ["sh", "-c", KEEPER, "bellglass-keeper", binary, data, "yes" if own else "no"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            # Ctrl-C is meant for the calling program, which may continue to use its sandboxes.
            start_new_session=True,
        )
        try:
            #: The address the server listens on.
            self.url = self._address(time.monotonic() + STARTS_WITHIN)
            #: The first key, with the role of administrator.
            self.key = (data / "first.key").read_text().strip()
            self._tell(self.url)
            self._healthy(time.monotonic() + STARTS_WITHIN)
        except BaseException:
            self.stop()
            raise
        atexit.register(self.stop)

    def stop(self) -> None:
        """Stop the sandboxes and the server. The call is safe to repeat, and does nothing in a forked child."""
        if os.getpid() != self._process or self._keeper.stdin is None:
            return
        atexit.unregister(self.stop)
        # A child after `fork` also holds the pipe, so closing our end may not signal end-of-file.
        self._tell("end")
        with contextlib.suppress(OSError):
            self._keeper.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(ENDS_WITHIN)
        if self._keeper.stdout is not None:
            self._keeper.stdout.close()
        if _local.made is self:
            from . import defaults

            _local.forget()
            defaults.forget()

    def _address(self, until: float) -> str:
        """Read the address the server listens on."""
        output = self._keeper.stdout
        said = b""
        while output is not None and time.monotonic() < until:
            if not select.select([output], [], [], 0.1)[0]:
                continue
            piece = os.read(output.fileno(), 4096)
            if not piece:
                break
            said += piece
            for line in said.decode(errors="replace").splitlines(keepends=True):
                if line.startswith("bellglass serves ") and line.endswith("\n"):
                    return line.removeprefix("bellglass serves ").strip()
        raise self._silent("did not report its address")

    def _tell(self, line: str) -> None:
        # Ignore a keeper that has already exited.
        if self._keeper.stdin is not None and not self._keeper.stdin.closed:
            with contextlib.suppress(OSError):
                self._keeper.stdin.write(line.encode() + b"\n")
                self._keeper.stdin.flush()

    def _healthy(self, until: float) -> None:
        """Wait until the server responds. This does not test whether it can create sandboxes."""
        with httpx.Client(trust_env=False) as client:
            while time.monotonic() < until:
                with contextlib.suppress(httpx.HTTPError):
                    client.get(f"{self.url}/healthz")
                    return
                time.sleep(0.05)
        raise self._silent("does not respond")

    def _silent(self, what: str) -> NoServer:
        try:
            log = (self.data / "serve.log").read_text(errors="replace")[-LOG_SHOWN:].strip()
        except OSError:
            log = ""
        return NoServer(
            f"the local server {what}" + (f": {log}" if log else ""),
            ran="no",
            hint="Run `bellglass doctor`, or select a server with BELLGLASS_SERVER and BELLGLASS_API_KEY.",
        )


_local: Default[LocalServer] = Default()


def local(data: str | os.PathLike[str] | None = None, *, binary: str | os.PathLike[str] | None = None) -> LocalServer:
    """Return the local server of this process. The first call starts it.

    Args:
        data: Data directory, which contains the templates. By default the server gets a temporary directory, which uses
            the templates of the installed Bellglass and is removed when the server stops.
        binary: The `bellglass` program. By default, `find_binary` searches for it.

    Raises:
        NoServer: The program was not found, or the server did not start.
    """
    return _local.get(lambda: _start(data, binary))


def find_binary() -> Path:
    """Find the `bellglass` program: next to the interpreter, in the package, or on `PATH`.

    Raises:
        NoServer: The program was not found.
    """
    name = "bellglass"
    here = [
        Path(sysconfig.get_path("scripts")) / name,
        Path(sys.executable).parent / name,
        Path(__file__).parent / "bin" / name,
    ]
    for one in here:
        if one.is_file() and os.access(one, os.X_OK):
            return one
    found = shutil.which(name)
    if found is None:
        raise NoServer(
            "cannot start a server: `bellglass` was not found",
            ran="no",
            hint="Install a wheel that includes it, or select a server with BELLGLASS_SERVER and BELLGLASS_API_KEY.",
        )
    return Path(found)


def _start(data: str | os.PathLike[str] | None, binary: str | os.PathLike[str] | None) -> LocalServer:
    try:
        return _started(data, Path(binary) if binary is not None else find_binary())
    except OSError as error:
        raise NoServer(
            f"the local server cannot be started: {error}", ran="no", hint="Check for free disk space."
        ) from error


def _started(data: str | os.PathLike[str] | None, program: Path) -> LocalServer:
    if data is not None:
        directory = Path(data).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        return LocalServer(directory, False, program.absolute())
    directory = Path(tempfile.mkdtemp(prefix="bellglass-"))
    # Sandbox processes must be able to traverse it.
    directory.chmod(0o711)
    _lend(_installed(), directory)
    return LocalServer(directory, True, program.absolute())


def _installed() -> Path:
    """Return the data directory of the installed Bellglass, which holds its templates."""
    named = os.environ.get("BELLGLASS_DATA")
    if named:
        return Path(named)
    return Path("/var/lib/bellglass") if os.geteuid() == 0 else Path.home() / ".local/share/bellglass"


def _lend(source: Path, target: Path) -> None:
    """Share templates with the local server without copying their layers."""
    for folder in ("templates", "layers"):
        (target / folder).mkdir(mode=0o711)
    with contextlib.suppress(FileNotFoundError):
        for template in (source / "templates").glob("*.json"):
            shutil.copy2(template, target / "templates" / template.name)
        for layer in (source / "layers").iterdir():
            (target / "layers" / layer.name).symlink_to(layer)
    # Also copy the engines' image records, because a name alone does not identify an image.
    for kind in ("docker", "podman"):
        for records in (f"{kind}-images", f"{kind}-sealed"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copytree(source / "engine" / records, target / "engine" / records)
