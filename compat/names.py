"""A name server for programs of its own: every name is this machine."""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path

HERE = socket.inet_aton("127.0.0.1")
A = 1


class Names:
    """Answers on a loopback address of its own, until it is closed; resolvers ask on no port but 53."""

    def __init__(self, directory: Path) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        address = "127." + ".".join(str(1 + byte % 254) for byte in os.urandom(3))
        self._socket.bind((address, 53))
        self._file = directory / "resolv.conf"
        self._file.write_text(f"nameserver {address}\n")
        threading.Thread(target=self._serve, daemon=True).start()

    def asked_by(self, words: list[str]) -> list[str]:
        """The same program, for which names are what is said here; for everybody else they stay what they are."""
        within = 'mount --bind "$1" /etc/resolv.conf && shift && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", within, "sh", str(self._file), *words]

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                question, whence = self._socket.recvfrom(512)
            except OSError:
                return
            self._socket.sendto(_answer(question), whence)


def _answer(question: bytes) -> bytes:
    """This machine's address of the old kind; of the new kind there is none."""
    end = 12
    while question[end]:
        end += 1 + question[end]
    (kind,) = struct.unpack("!H", question[end + 1 : end + 3])
    found = int(kind == A)
    head = question[:2] + struct.pack("!HHHHH", 0x8580, 1, found, 0, 0)
    record = struct.pack("!HHHIH", 0xC00C, A, 1, 60, len(HERE)) + HERE
    return head + question[12 : end + 5] + record * found
