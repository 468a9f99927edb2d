"""Kernels of Jupyter's by jupyter_client, told what to do by lines of JSON. A sandbox is a kernel; nothing separates two of them."""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

sys.path.append("/opt/jupyter")  # behind the template's own packages, so that those are used that sandboxes have
WITHIN = 170  # seconds; whoever asks gives up at 180
AT_ONCE = 256
said = threading.Lock()


def say(line):
    with said:
        print(json.dumps(line), flush=True)


try:
    import os

    import ipykernel
    import jupyter_client
    from jupyter_client.manager import KernelManager

    # Kernels find their packages as this program does.
    os.environ["PYTHONPATH"] = "/opt/jupyter"
except Exception as error:
    say({"error": f"{type(error).__name__}: {error}"})
    sys.exit(1)

kernels = {}


def create(request):
    # Without a kernel specification in the image: it is made of the interpreter that runs this.
    manager = KernelManager()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=WITHIN)
    handle = manager.connection_file
    kernels[handle] = (manager, client)
    return {"handle": handle}


def cell(request):
    _, client = kernels[request["handle"]]
    reply = client.execute_interactive(request["source"], timeout=WITHIN, output_hook=lambda message: None)
    if reply["content"]["status"] != "ok":
        raise RuntimeError(reply["content"].get("evalue", "the cell failed"))
    return {}


def stop(request):
    manager, client = kernels.pop(request["handle"])
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    return {}


OPERATIONS = {"create": create, "cell": cell, "stop": stop}


def serve(request):
    try:
        answer = OPERATIONS[request["op"]](request)
    except Exception as error:
        answer = {"error": {"code": type(error).__name__, "message": str(error)[:400]}}
    say({"id": request["id"], **answer})


say(
    {
        "facts": {
            "version": f"jupyter_client {jupyter_client.__version__}, ipykernel {ipykernel.__version__}",
            "runs in": "one container of bare runc for all kernels",
        },
        "powers": ["contexts"],
    }
)
with ThreadPoolExecutor(AT_ONCE) as pool:
    for line in sys.stdin:
        pool.submit(serve, json.loads(line))
for handle in list(kernels):
    stop({"handle": handle})
