"""A server of this process's own, for whoever has none. It and its sandboxes end with the process, however that ends.

Between the process and the server stands a shell, the keeper, which holds the reading end of a pipe. When the process is
gone, even by SIGKILL, the pipe has an end; the keeper then stops the sandboxes, ends the server and removes its data. A
signal at the parent's death would end the server and leave the sandboxes, and follows a thread, not a process.
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
from .errors import BelljarError

STARTS_WITHIN = 60.0
"""A start of the server, on a machine under load."""
ENDS_WITHIN = 60.0
"""The end of its sandboxes and of the server, likewise."""
LOG_SHOWN = 2000
"""What is shown of the log of a server that does not start."""
KEEPER = """
binary=$1 data=$2 own=$3
"$binary" --data "$data" serve --listen 127.0.0.1:0 --first-key "$data/first.key" </dev/null 2>>"$data/serve.log" &
server=$!
exec >/dev/null
read -r url || :
read -r nothing || :
case $url in http*)
  export BELLJAR_SERVER="$url"
  ids=$("$binary" --key-file "$data/first.key" --server-wait 5s list --quiet)
  [ -z "$ids" ] || "$binary" --key-file "$data/first.key" --server-wait 5s stop $ids
  ;;
esac
kill -TERM $server
wait $server
[ "$own" = no ] || rm -rf --one-file-system "$data"
"""


class NoServer(BelljarError):
    """No server of our own could be started."""


class LocalServer:
    """A server of this process's own."""

    def __init__(self, data: Path, own: bool, binary: Path) -> None:
        #: Its data directory.
        self.data = data
        self._process = os.getpid()
        # Given the names of others, it would ask them instead of serving.
        named = ("BELLJAR_SERVER", "BELLJAR_KEY", "BELLJAR_DATA")
        environment = {name: value for name, value in os.environ.items() if name not in named}
        self._keeper = subprocess.Popen(
            ["sh", "-c", KEEPER, "belljar-keeper", binary, data, "yes" if own else "no"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            # Ctrl-C is for the program, which may go on with its sandboxes.
            start_new_session=True,
        )
        try:
            #: Where it listens.
            self.url = self._address(time.monotonic() + STARTS_WITHIN)
            #: Its first key, an administrator's.
            self.key = (data / "first.key").read_text().strip()
            self._tell(self.url)
            self._healthy(time.monotonic() + STARTS_WITHIN)
        except BaseException:
            self.stop()
            raise
        atexit.register(self.stop)

    def stop(self) -> None:
        """Ends its sandboxes and the server. Can be repeated; in a child after `fork` it does nothing."""
        if os.getpid() != self._process or self._keeper.stdin is None:
            return
        atexit.unregister(self.stop)
        # A child after `fork` holds the pipe as well, so that its end alone may not come.
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
        """Reads where it listens."""
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
                if line.startswith("belljar serves ") and line.endswith("\n"):
                    return line.removeprefix("belljar serves ").strip()
        raise self._silent("did not say where it listens")

    def _tell(self, line: str) -> None:
        # One that is gone already has nothing to be told.
        if self._keeper.stdin is not None and not self._keeper.stdin.closed:
            with contextlib.suppress(OSError):
                self._keeper.stdin.write(line.encode() + b"\n")
                self._keeper.stdin.flush()

    def _healthy(self, until: float) -> None:
        """Waits until it answers. Whether it can make sandboxes is told by the first that is made."""
        with httpx.Client(trust_env=False) as client:
            while time.monotonic() < until:
                with contextlib.suppress(httpx.HTTPError):
                    client.get(f"{self.url}/healthz")
                    return
                time.sleep(0.05)
        raise self._silent("does not answer")

    def _silent(self, what: str) -> NoServer:
        try:
            log = (self.data / "serve.log").read_text(errors="replace")[-LOG_SHOWN:].strip()
        except OSError:
            log = ""
        return NoServer(
            f"the local server {what}" + (f": {log}" if log else ""),
            ran="no",
            hint="Run `belljar doctor`, or name a server with BELLJAR_SERVER and BELLJAR_KEY.",
        )


_local: Default[LocalServer] = Default()


def local(data: str | os.PathLike[str] | None = None, *, binary: str | os.PathLike[str] | None = None) -> LocalServer:
    """The server of this process, started on first use. With `data` it keeps its templates there; otherwise it has a
    directory of its own, to which the templates of the installed Belljar are lent, and which goes with it."""
    return _local.get(lambda: _start(data, binary))


def find_binary() -> Path:
    """The `belljar` that belongs to this package: beside the interpreter, in the package, or on the path."""
    name = "belljar"
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
            "there is no `belljar` to start a server with",
            ran="no",
            hint="Install a wheel that carries it, or name a server with BELLJAR_SERVER and BELLJAR_KEY.",
        )
    return Path(found)


def _start(data: str | os.PathLike[str] | None, binary: str | os.PathLike[str] | None) -> LocalServer:
    try:
        return _started(data, Path(binary) if binary is not None else find_binary())
    except OSError as error:
        raise NoServer(
            f"the local server cannot be started: {error}", ran="no", hint="See that its disk has room."
        ) from error


def _started(data: str | os.PathLike[str] | None, program: Path) -> LocalServer:
    if data is not None:
        directory = Path(data).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        return LocalServer(directory, False, program.absolute())
    directory = Path(tempfile.mkdtemp(prefix="belljar-"))
    # Processes of sandboxes walk through it.
    directory.chmod(0o711)
    _lend(_installed(), directory)
    return LocalServer(directory, True, program.absolute())


def _installed() -> Path:
    """Where the installed Belljar keeps its templates."""
    named = os.environ.get("BELLJAR_DATA")
    if named:
        return Path(named)
    return Path("/var/lib/belljar") if os.geteuid() == 0 else Path.home() / ".local/share/belljar"


def _lend(source: Path, target: Path) -> None:
    """Lends templates without copying their layers."""
    for folder in ("templates", "layers"):
        (target / folder).mkdir(mode=0o711)
    with contextlib.suppress(FileNotFoundError):
        for template in (source / "templates").glob("*.json"):
            shutil.copy2(template, target / "templates" / template.name)
        for layer in (source / "layers").iterdir():
            (target / "layers" / layer.name).symlink_to(layer)
