"""Sessions of llm-sandbox on Docker, told what to do by lines of JSON.

driver.py PLAIN_IMAGE DATA_IMAGE MEMORY_BYTES MEMORY_BYTES_DATA PIDS LABEL
"""

import json
import os
import sys
import tempfile
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

PLAIN, DATA, MEMORY, MEMORY_DATA, PIDS, LABEL = sys.argv[1:]
AT_ONCE = 256
FILES = "/var/tmp"
said = threading.Lock()


def say(line):
    with said:
        print(json.dumps(line), flush=True)


try:
    import logging

    from llm_sandbox import SandboxSession

    logging.disable(logging.CRITICAL)
except Exception as error:
    say({"error": f"{type(error).__name__}: {error}"})
    sys.exit(1)

sessions = {}


def create(request):
    data = request["image"] == "data"
    name, _, value = LABEL.partition("=")
    session = SandboxSession(
        lang="python",
        image=DATA if data else PLAIN,
        workdir="/var/tmp",
        keep_template=True,
        # Its own setup upgrades pip over the network, which a sandbox does not have.
        skip_environment_setup=True,
        runtime_configs={
            "network_mode": "none",
            "mem_limit": int(MEMORY_DATA if data else MEMORY),
            "pids_limit": int(PIDS),
            "nano_cpus": 1_000_000_000,
            "labels": {name: value},
        },
    )
    session.open()
    handle = uuid.uuid4().hex
    sessions[handle] = session
    return {"handle": handle}


def done(result):
    if result.exit_code != 0:
        raise RuntimeError(f"exit code {result.exit_code}: {result.stderr[-300:]}")
    return {}


def execute(request):
    return done(sessions[request["handle"]].execute_command(" ".join(request["argv"])))


def run(request):
    return done(sessions[request["handle"]].run(request["source"]))


def upload(request):
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"\x5a" * request["bytes"])
        file.flush()
        sessions[request["handle"]].copy_to_runtime(file.name, f"{FILES}/{request['name']}")
    return {}


def download(request):
    with tempfile.TemporaryDirectory() as directory:
        to = os.path.join(directory, "bench.bin")
        sessions[request["handle"]].copy_from_runtime(f"{FILES}/{request['name']}", to)
        return {"bytes": os.path.getsize(to)}


def stop(request):
    sessions.pop(request["handle"]).close()
    return {}


OPERATIONS = {
    "create": create,
    "exec": execute,
    "run": run,
    "upload": upload,
    "download": download,
    "stop": stop,
}


def serve(request):
    try:
        answer = OPERATIONS[request["op"]](request)
    except Exception as error:
        answer = {"error": {"code": type(error).__name__, "message": str(error)[:400]}}
    say({"id": request["id"], **answer})


say(
    {
        "facts": {"version": f"llm-sandbox {version('llm-sandbox')}", "runs on": "Docker, without its environment setup"},
        "powers": ["exec", "code", "files"],
    }
)
with ThreadPoolExecutor(AT_ONCE) as pool:
    for line in sys.stdin:
        pool.submit(serve, json.loads(line))
for handle in list(sessions):
    stop({"handle": handle})
