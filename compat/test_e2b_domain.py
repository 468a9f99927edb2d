"""E2B's SDKs told nothing but a domain, over TLS: the API at `api.DOMAIN`, each sandbox at a name of its own.

What they do beyond that is the same as in `test_e2b.py`, so some scenarios of each kind are enough.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import environments
import pytest
import test_e2b
from conftest import Server
from names import Names

DOMAIN = "bellglass.test"
SCENARIOS = (
    "commands_foreground",
    "commands_output_comes_while_they_run",
    "commands_connect",
    "files_text",
    "files_large_ones_stay_whole",
    "files_watch",
    "files_by_signed_address",
    "pty_input_resize_and_exit",
    "code_keeps_its_state",
    "code_callbacks_come_in_order",
    "pause_keeps_a_process_and_its_memory",
)
RUNS_WITHIN = 600


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all names below the domain, which is its own authority. Its key lies beside it."""
    made = tmp_path_factory.mktemp("tls") / "tls.pem"
    names = f"subjectAltName=DNS:{DOMAIN},DNS:*.{DOMAIN},IP:127.0.0.1"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=bellglass".split()
    words += ["-addext", names, "-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run([*words, "-keyout", made.with_suffix(".key"), "-out", made], check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def encrypted(certificate: Path) -> Iterator[Server]:
    key = certificate.with_suffix(".key")
    running = Server(certificate, domain=DOMAIN, tls_certificate=str(certificate), tls_key=str(key))
    yield running
    running.end()


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Names]:
    running = Names(tmp_path_factory.mktemp("names"))
    yield running
    running.close()


def newest() -> list[test_e2b.Release]:
    """The newest release of each language, and of each kind of it."""
    every = test_e2b.releases()
    first = {language: next(one.e2b for one in every if one.language == language) for language in ("python", "javascript")}
    return [one for one in every if one.e2b == first[one.language]]


@pytest.mark.timeout(RUNS_WITHIN + environments.INSTALLS_WITHIN)
@pytest.mark.parametrize("newest_release", newest(), ids=str)
def test_a_domain_is_all_they_need(
    encrypted: Server, certificate: Path, names: Names, newest_release: test_e2b.Release
) -> None:
    words, directory = newest_release.program()
    variables = environments.environment(
        E2B_API_KEY=f"e2b_{encrypted.key}",
        E2B_DOMAIN=f"{DOMAIN}:{urlsplit(encrypted.url).port}",
        SSL_CERT_FILE=str(certificate),
        NODE_EXTRA_CA_CERTS=str(certificate),
    )
    words = names.asked_by([*words, *SCENARIOS])
    ended = subprocess.run(
        words, cwd=directory, env=variables, capture_output=True, text=True, timeout=RUNS_WITHIN, check=False
    )
    test_e2b.check(ended, len(SCENARIOS))
