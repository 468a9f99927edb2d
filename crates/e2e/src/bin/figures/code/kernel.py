"""A Jupyter kernel: nanoseconds from its start until it is ready, until its first cell with the imports is done, and of the next cell."""

import sys
import time

from jupyter_client.manager import KernelManager

WITHIN = 100
IMPORTS, CELL = sys.argv[1:]


def run(client, code):
    said = client.execute_interactive(code, timeout=WITHIN, output_hook=lambda message: None)
    if said["content"]["status"] != "ok":
        sys.exit(f"the kernel said {said['content']}")


began = time.perf_counter_ns()
manager = KernelManager(kernel_name="python3")
manager.start_kernel()
client = manager.client()
try:
    client.start_channels()
    client.wait_for_ready(timeout=WITHIN)
    ready = time.perf_counter_ns()
    run(client, f"{IMPORTS}\n{CELL}")
    first = time.perf_counter_ns()
    run(client, CELL)
    second = time.perf_counter_ns()
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
print(ready - began, first - began, second - first)
