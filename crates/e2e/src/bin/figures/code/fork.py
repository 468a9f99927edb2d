"""Forks of an interpreter that has its imports done: for each word read, how long one took, in nanoseconds.

`nothing` ends at once; `cell` runs the first argument before.
"""

import os
import sys
import time

import matplotlib.pyplot
import numpy
import pandas

print("ready", flush=True)
for word in sys.stdin:
    began = time.perf_counter_ns()
    child = os.fork()
    if child == 0:
        if word.strip() == "cell":
            exec(sys.argv[1], {})
        os._exit(0)
    _, status = os.waitpid(child, 0)
    took = time.perf_counter_ns() - began
    print(took if status == 0 else f"the fork ended with {status}", flush=True)
