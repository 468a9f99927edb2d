"""Artifacts and datasets. Artifacts are files that a run created or changed, and they outlive the sandbox."""

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
"""Default time to wait for the artifacts of a run, in seconds."""
WAIT_ONCE = 20.0
"""Longest wait in one request, in seconds. It must be shorter than the timeout of any proxy in between."""
ASK_AGAIN = 0.05
ARTIFACT_BYTES_MAX = 1 << 30
"""Maximum size of an artifact."""


@dataclass(frozen=True)
class Artifact:
    """A file that a run created or changed, stored on the server."""

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
        """List the artifacts of one exec, or of all execs.

        Args:
            exec_id: Wait for this exec to end, and list only its artifacts.
            wait: Maximum time to wait for this exec, in seconds.
        """
        if exec_id is None:
            kept = await self._link.pages(f"{self._path}/artifacts")
        else:
            kept = [await self.report(exec_id, wait=wait)]
        return [decode(Artifact, item, exec=one["exec"]) for one in kept for item in one["items"]]

    async def report(self, exec_id: str, *, wait: float = WAIT) -> dict[str, Any]:
        """Return the artifact report of an exec in its JSON form, with `items`, `left_out`, `complete` and `pending`.

        Waits up to `wait` seconds while the report is pending. After that time, returns it even if it is still pending.
        """
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
        """Return the content of an artifact, verified against its hash.

        Raises:
            ProtocolBroken: The content does not match the hash.
        """
        path = f"{self._path}/execs/{artifact.exec}/artifacts/{artifact.number}"
        data = await self._link.fetch(Ask("GET", path, stream=True), ARTIFACT_BYTES_MAX)
        if hashlib.sha256(data).hexdigest() != artifact.sha256:
            raise self._link.protocol(f"artifact {artifact.name} has the wrong checksum")
        return data


class AsyncDatasets:
    """The datasets of the project: files copied into sandboxes before anything runs in them."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def put(self, name: str, data: str | bytes) -> Mapping[str, Any]:
        """Store a file as a dataset. An existing dataset of the same name is replaced atomically."""
        body = data.encode() if isinstance(data, str) else data
        said: Mapping[str, Any] = await self._link.call(Ask("PUT", f"/v1/datasets/{name}", body=body))
        return said

    async def list(self) -> builtins.list[dict[str, Any]]:
        """List all datasets."""
        return await self._link.pages("/v1/datasets")

    async def remove(self, name: str) -> None:
        """Remove a dataset. Sandboxes that already have it keep their copy."""
        await self._link.call(Ask("DELETE", f"/v1/datasets/{name}"))
