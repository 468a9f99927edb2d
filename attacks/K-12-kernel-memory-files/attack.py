# What the machine's kernel tells of its memory and its work. Says of each file whether anything is in it.
FILES = ["kallsyms", "slabinfo", "timer_list", "interrupts", "softirqs", "keys", "key-users", "vmallocinfo", "pagetypeinfo", "diskstats",
         "partitions", "kcore", "sched_debug", "latency_stats", "modules", "1/environ"]
DIRECTORIES = ["/proc/1/root", "/sys/firmware", "/sys/devices/virtual/powercap", "/sys/devices/virtual/thermal", "/sys/devices/virtual/dmi"]


def content(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    text = os.read(descriptor, 4096)
    if path.endswith("kallsyms"):
        # Addresses that are all zero tell nothing.
        text = b"".join(line for line in text.splitlines() if line.split()[0].strip(b"0"))
    return text


def look(thing, act):
    try:
        say(thing, "ok" if act() else "empty")
    except OSError as error:
        say(thing, name(error.errno))


for file in FILES:
    look("/proc/" + file, lambda: content("/proc/" + file))
for directory in DIRECTORIES:
    look(directory, lambda: os.listdir(directory))
done()
