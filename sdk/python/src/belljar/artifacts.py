"""Files that a run made or changed, kept after the sandbox is gone."""

from __future__ import annotations

import builtins
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .link import Ask, Link
from .outcome import decode

WAIT = 30.0
"""How long the files of a run are waited for, unless another time is asked for."""
WAIT_ONCE = 20.0
"""One answer waits so long: less than anything in between does."""
ASK_AGAIN = 0.05
ARTIFACT_BYTES_MAX = 1 << 30
"""No artifact is larger."""


@dataclass(frozen=True)
class Artifact:
    """A file that was kept."""

    exec: str
    number: int
    name: str
    path: str
    mime: str
    size_bytes: int
    sha256: str


class AsyncArtifacts:
    """The artifacts of one sandbox."""

    def __init__(self, link: Link, sandbox: str) -> None:
        self._link = link
        self._path = f"/v1/sandboxes/{sandbox}"

    async def list(self, exec_id: str | None = None, *, wait: float = WAIT) -> builtins.list[Artifact]:
        """What was kept of one exec, whose end is waited for; or of all."""
        if exec_id is None:
            kept = await self._link.pages(f"{self._path}/artifacts")
        else:
            kept = [await self.report(exec_id, wait=wait)]
        return [decode(Artifact, item, exec=one["exec"]) for one in kept for item in one["items"]]

    async def report(self, exec_id: str, *, wait: float = WAIT) -> dict[str, Any]:
        """What was kept of an exec and what was not, as the API says it: `items`, `left_out`, `complete`, `pending`."""
        until = time.monotonic() + wait
        while True:
            left = max(until - time.monotonic(), 0)
            wait_ms = round(min(left, WAIT_ONCE) * 1000)
            found: dict[str, Any] = await self._link.call(
                Ask("GET", f"{self._path}/execs/{exec_id}/artifacts?wait_ms={wait_ms}")
            )
            if not found["pending"] or left == 0:
                return found
            await self._link.transport.sleep(ASK_AGAIN)

    async def download(self, artifact: Artifact) -> bytes:
        """Its bytes, compared with its hash."""
        path = f"{self._path}/execs/{artifact.exec}/artifacts/{artifact.number}"
        data = await self._link.fetch(Ask("GET", path, stream=True), ARTIFACT_BYTES_MAX)
        if hashlib.sha256(data).hexdigest() != artifact.sha256:
            raise self._link.protocol(f"{artifact.name} arrived as something else")
        return data


class AsyncDatasets:
    """The datasets of the project: files that are put into sandboxes before anything runs in them."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def put(self, name: str, data: str | bytes) -> Mapping[str, Any]:
        """Keeps a file under a name; one of that name is replaced in one step."""
        body = data.encode() if isinstance(data, str) else data
        said: Mapping[str, Any] = await self._link.call(Ask("PUT", f"/v1/datasets/{name}", body=body))
        return said

    async def list(self) -> builtins.list[dict[str, Any]]:
        """All of them."""
        return await self._link.pages("/v1/datasets")

    async def remove(self, name: str) -> None:
        """Forgets one. Sandboxes that have it keep it."""
        await self._link.call(Ask("DELETE", f"/v1/datasets/{name}"))
