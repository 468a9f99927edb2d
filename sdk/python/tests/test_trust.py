"""Tests of HTTPS: a server is trusted only if the configured authority signed its certificate."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import SMALL, Server, Way

import bellglass


class TrustedServer(Server):
    """A server that uses HTTPS with a self-signed certificate."""

    scheme = "https"

    def options(self) -> list[str]:
        certificate, key = self.data / "certificate.pem", self.data / "key.pem"
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(made, check=True, capture_output=True)
        config = self.data / "bellglass.toml"
        config.write_text(f'tls_certificate = "{certificate}"\ntls_key = "{key}"\n')
        return ["--config", str(config)]

    @property
    def authority(self) -> Path | None:
        return self.data / "certificate.pem"


@pytest.fixture(scope="module")
def trusted() -> Iterator[Server]:
    running = TrustedServer()
    yield running
    running.end()


@pytest.mark.parametrize("blocking", [True, False])
async def test_an_authority_that_is_named_is_trusted(trusted: Server, blocking: bool) -> None:
    way = Way(blocking, trusted)
    async with way.sandbox(limits=SMALL) as sandbox:
        assert (await way.do(sandbox.commands.run("echo sealed"))).stdout == "sealed\n"
        terminal = await way.do(sandbox.pty.create(["sh", "-c", "echo shown"]))
        assert "shown" in await way.do(terminal.read_until("shown"))
        await way.do(terminal.wait())


@pytest.mark.parametrize("kind", [bellglass.Client, bellglass.AsyncClient])
async def test_a_server_that_is_not_trusted_is_not_asked_twice(trusted: Server, kind: type) -> None:
    client = kind(trusted.url, trusted.key)
    with pytest.raises(bellglass.ConnectionFailed, match="not trusted") as caught:
        health = client.health()
        await health
    assert caught.value.ran == "no" and not caught.value.retryable
