"""What listens inside, spoken to from outside.

Names below `localhost` do not resolve everywhere. Requests are therefore sent to the server's own address, with the name that the
SDK gives as their `Host`.
"""

from __future__ import annotations

import base64
import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from scenario import Stage, now, scenario

ECHO = Path(__file__).parents[1] / "inside" / "echo.py"
REFUSED = (401, 403)
TOKEN = "e2b-traffic-access-token"


def headers(stage: Stage, sandbox: Any, port: int) -> dict[str, str]:
    """Those that open a port: none but the name, or also the sandbox's token, which is then noted."""
    name = {"host": sandbox.get_host(port)}
    if httpx.get(stage.url, headers=name).status_code not in REFUSED or not sandbox.traffic_access_token:
        return name
    stage.differs("Sandbox.get_host", f"requests to a port need the header `{TOKEN}`")
    return {**name, TOKEN: sandbox.traffic_access_token}


async def listening(stage: Stage, sandbox: Any, port: int, *, note: bool = True) -> dict[str, str]:
    """Waits until something listens; the headers that reach it."""

    async def open_inside() -> bool:
        look = f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo open || true"
        return (await now(sandbox.commands.run(look))).stdout == "open\n"

    await stage.until(open_inside)
    return headers(stage, sandbox, port) if note else {}


@scenario()
async def ports_http(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    await now(sandbox.files.write("www/a b.txt", "served"))
    await now(sandbox.commands.run("python3 -m http.server 8000 --directory www", background=True, timeout=0))
    host = sandbox.get_host(8000)
    assert host.startswith(f"8000-{sandbox.sandbox_id}."), host
    known = await listening(stage, sandbox, 8000)
    got = httpx.get(f"{stage.url}/a%20b.txt", headers=known)
    assert (got.status_code, got.text) == (200, "served"), got
    assert httpx.get(f"{stage.url}/nothing", headers=known).status_code == 404
    # Belongs to nobody, or to a port where nothing listens.
    for name in (host.replace("8000", "8001", 1), host.replace(sandbox.sandbox_id, "inosuchsandboxisthere")):
        refused = httpx.get(stage.url, headers={**known, "host": name})
        assert refused.status_code >= 400, (name, refused.status_code)


@scenario()
async def ports_that_are_not_public(stage: Stage) -> None:
    sandbox = await stage.sandbox(network={"allow_public_traffic": False})
    await now(sandbox.files.write("www/note", "served"))
    await now(sandbox.commands.run("python3 -m http.server 8000 --directory www", background=True, timeout=0))
    await listening(stage, sandbox, 8000, note=False)
    name = {"host": sandbox.get_host(8000)}
    assert httpx.get(f"{stage.url}/note", headers=name).status_code in REFUSED
    assert httpx.get(f"{stage.url}/note", headers={**name, TOKEN: "wrong"}).status_code in REFUSED
    assert httpx.get(f"{stage.url}/note", headers={**name, TOKEN: sandbox.traffic_access_token}).text == "served"


@scenario()
async def ports_websocket(stage: Stage) -> None:
    sandbox = await stage.sandbox()
    await now(sandbox.files.write("echo.py", ECHO.read_text()))
    await now(sandbox.commands.run("python3 echo.py 8765", background=True, timeout=0))
    known = await listening(stage, sandbox, 8765)
    with WebSocket(stage.url, known) as there:
        for text in ("hello", "Grüße " * 10):
            assert there.ask(text) == text


class WebSocket:
    """A client that is just enough for an echo: short texts, each in one frame."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        where = urlsplit(url)
        self._socket = socket.create_connection((where.hostname, where.port), timeout=20)
        self._file = self._socket.makefile("rb")
        key = base64.b64encode(os.urandom(16)).decode()
        lines = ["GET /echo HTTP/1.1", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
        lines += [f"Sec-WebSocket-Key: {key}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self._socket.sendall("\r\n".join(lines).encode())
        status = self._file.readline()
        assert b" 101 " in status, status + self._file.read(1000)
        while self._file.readline() != b"\r\n":
            pass

    def ask(self, text: str) -> str:
        data = text.encode()
        assert len(data) < 126
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
        self._socket.sendall(bytes([0x81, 0x80 | len(data)]) + mask + masked)
        first, size = self._file.read(2)
        assert first == 0x81, first
        return self._file.read(size).decode()

    def __enter__(self) -> WebSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
