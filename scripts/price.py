#!/usr/bin/env python3
"""Compares the time and memory that two bellglass executables need, and prints the ratios.

    scripts/price.py OLD NEW [ROUNDS]

The script must run as root. It starts one server per executable, each with its own data directory and the template `base`. Alternating
between the servers, it measures how long it takes to create a sandbox and run its first exec, both for pre-warmed and for cold-started
sandboxes. It also measures the memory of an idle sandbox. At the end it stops the servers and removes their data.
"""

import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

IDLE = 40
TRUE = json.dumps({"argv": ["/bin/true"]})
SMALL = {"memory_bytes": 128 << 20}


class Server:
    def __init__(self, binary: str, templates: Path, extra: str) -> None:
        self.data = Path(tempfile.mkdtemp(prefix="bellglass-price", dir="/var/tmp"))
        self.data.chmod(0o711)
        subprocess.run(["cp", "-a", *(str(templates / name) for name in ("layers", "templates")), self.data], check=True)
        (self.data / "serve.toml").write_text(extra)
        key = self.data / "first.key"
        command = [binary, "--data", self.data, "serve", "--config", self.data / "serve.toml"]
        with (self.data / "log").open("w") as log:
            self.process = subprocess.Popen(
                [*map(str, command), "--listen", "127.0.0.1:0", "--first-key", str(key)],
                stdout=subprocess.PIPE, stderr=log, text=True)
        for line in self.process.stdout:
            if found := re.match(r"bellglass serves \w+://(\S+)", line):
                break
        self.connection = http.client.HTTPConnection(found[1], timeout=60)
        self.headers = {"authorization": f"Bearer {key.read_text().strip()}", "content-type": "application/json"}
        project = {"quota": json.loads(self.ask("GET", "/v1/projects"))["items"][0]["quota"]}
        project["quota"].update(sandboxes=1000, memory_bytes=1 << 42, disk_bytes=1 << 42, creates_per_second=1000, execs_per_second=1000)
        self.ask("PUT", "/v1/projects/default", json.dumps(project))

    def ask(self, method: str, path: str, body: str | None = None, accept: str = "application/json") -> str:
        self.connection.request(method, path, body, {**self.headers, "accept": accept})
        answer = self.connection.getresponse()
        text = answer.read().decode()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text}")
        return text

    def create(self) -> dict:
        return json.loads(self.ask("POST", "/v1/sandboxes", json.dumps({"template": "base", "limits": SMALL})))

    def exec(self, sandbox: dict) -> None:
        told = self.ask("POST", f"/v1/sandboxes/{sandbox['id']}/execs", TRUE, accept="application/x-ndjson")
        if '"code":0' not in told.replace(" ", ""):
            raise RuntimeError(told)

    def stop(self, sandbox: dict) -> None:
        self.ask("DELETE", f"/v1/sandboxes/{sandbox['id']}")

    def life(self) -> tuple[float, str]:
        """Returns the time from the create request to the end of the first exec, in milliseconds, and the kind of start."""
        begun = time.monotonic()
        sandbox = self.create()
        self.exec(sandbox)
        took = time.monotonic() - begun
        self.stop(sandbox)
        return took * 1000, str(sandbox["start"])

    def rss(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) << 10

    def idle(self) -> float:
        """Returns the memory of an idle sandbox in KiB: its share of the server's memory plus the memory of its cgroups."""
        before = self.rss()
        all_of_them = [self.create() for _ in range(IDLE)]
        for one in all_of_them:
            self.exec(one)
        time.sleep(3)
        charged = sum(charged_bytes(one["id"]) for one in all_of_them)
        held = (self.rss() - before + charged) / IDLE / 1024
        for one in all_of_them:
            self.stop(one)
        return held

    def end(self) -> None:
        # A sandbox outlives its server, and its disk takes a gigabyte.
        for sandbox in json.loads(self.ask("GET", "/v1/sandboxes?limit=1000"))["items"]:
            self.ask("DELETE", f"/v1/sandboxes/{sandbox['id']}")
        self.process.terminate()
        self.process.wait(60)
        shutil.rmtree(self.data, ignore_errors=True)


def charged_bytes(sandbox: str) -> int:
    # `os.walk` ignores cgroups that are removed meanwhile.
    for root in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup"):
        for path in (Path(place) for place, _, _ in os.walk(root) if sandbox in Path(place).name):
            for name in ("memory.usage_in_bytes", "memory.current"):
                if (path / name).exists():
                    return int((path / name).read_text())
    raise RuntimeError(f"no cgroup of {sandbox}")


def compare(what: str, figures: list[list[float]], unit: str) -> None:
    for name, pick in (("p50", 50), ("p95", 95)):
        values = [statistics.quantiles(one, n=100)[pick - 1] if len(one) > 2 else statistics.median(one) for one in figures]
        print(f"{what} {name}: {values[0]:.2f} {unit} before, {values[1]:.2f} {unit} after, ratio {values[1] / values[0]:.3f}")


def main() -> None:
    binaries, rounds = sys.argv[1:3], int((sys.argv[3:] or ["200"])[0])
    templates = Path(os.environ.get("BELLGLASS_TEMPLATES", "/var/lib/bellglass"))
    for what, extra, pause in (("warm", "", 0.08), ("cold", "pool_ready = 0\n", 0.0)):
        servers = [Server(binary, templates, extra) for binary in binaries]
        try:
            times: list[list[float]] = [[], []]
            kinds: list[dict[str, int]] = [{}, {}]
            for turn in range(rounds + 5):
                for index in ((0, 1), (1, 0))[turn % 2]:
                    time.sleep(pause)
                    took, kind = servers[index].life()
                    if turn >= 5:
                        times[index].append(took)
                        kinds[index][kind] = kinds[index].get(kind, 0) + 1
            print(what, kinds)
            compare(f"{what} create and first exec", times, "ms")
            if what == "cold":
                compare("memory of an idle sandbox", [[server.idle() for _ in range(3)] for server in servers], "KiB")
        finally:
            for server in servers:
                server.end()


if __name__ == "__main__":
    main()
