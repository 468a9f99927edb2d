"""A proxy that breaks each connection after a limited number of bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Cutter:
    """Forwards connections, and closes each after `bytes_max` bytes, counted over both directions."""

    def __init__(self, address: str, bytes_max: int) -> None:
        host, _, port = address.partition(":")
        self._server, self._bytes_max = (host, int(port)), bytes_max
        self._listener = socket.create_server(("127.0.0.1", 0))
        #: Number of broken connections.
        self.cuts = 0
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        # `close` alone does not wake a thread blocked in `accept`.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                _Connection(self, near, socket.create_connection(self._server), self._bytes_max)


class _Connection:
    def __init__(self, cutter: Cutter, near: socket.socket, far: socket.socket, left: int) -> None:
        self._cutter, self._ends, self._left = cutter, (near, far), left
        self._lock = threading.Lock()
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                with self._lock:
                    carried = data[: self._left]
                    self._left -= len(carried)
                target.sendall(carried)
                if len(carried) < len(data):
                    self._cutter.cuts += 1
                    break
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            # If left open, it would still accept bytes that are never read.
            end.close()


@contextlib.contextmanager
def cutting(address: str, bytes_max: int) -> Iterator[Cutter]:
    cutter = Cutter(address, bytes_max)
    try:
        yield cutter
    finally:
        cutter.close()
