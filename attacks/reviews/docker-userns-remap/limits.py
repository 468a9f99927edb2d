# What the limits of a sandbox of 256 MiB and 128 processes let through.
import os, time, subprocess
n = 0
try:
    for i in range(300):
        if os.fork() == 0: time.sleep(3); os._exit(0)
        n += 1
except OSError as e: print("fork", e)
print("processes", n)
for i in range(n):
    try: os.wait()
    except OSError: pass
n = 0
try:
    for i in range(200000): os.close(os.open("/tmp/f%d" % i, os.O_CREAT)); n += 1
except OSError as e: print("inodes", e)
print("files in /tmp", n)
for i in range(n): os.unlink("/tmp/f%d" % i)
n = 0
try:
    f = os.open("/workspace/big", os.O_CREAT | os.O_WRONLY)
    while n < 600: os.write(f, b"x" * (1 << 20)); n += 1
except OSError as e: print("disk", e)
print("MiB in /workspace", n); os.unlink("/workspace/big")
c = time.process_time(); w = time.time()
kids = []
for i in range(3):
    p = os.fork()
    if p == 0:
        e = time.time() + 3
        while time.time() < e: pass
        os._exit(0)
    kids.append(p)
for k in kids: os.waitpid(k, 0)
t = os.times(); print("processor: %.1f s of 3 processes in %.1f s" % (t.children_user + t.children_system, time.time() - w))
b = []
try:
    for i in range(500): b.append(bytearray(os.urandom(1 << 20)))
    print("memory", len(b))
except MemoryError: print("memory error at", len(b))
