# Settings of the kernel and of this process that only an administrator may change. What is written is what was there,
# or a word without meaning, so that even a success changes nothing. A first argument names a copy of the tree.
root = sys.argv[1] if len(sys.argv) > 1 else ""
SAME = ["kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "kernel/panic",
        "kernel/unprivileged_bpf_disabled", "kernel/randomize_va_space", "vm/overcommit_memory",
        "net/ipv4/ip_forward", "net/ipv4/ping_group_range", "fs/suid_dumpable"]
OTHER = {"/proc/sysrq-trigger": "h", "/proc/sys/fs/binfmt_misc/register": ":x", "/proc/self/oom_score_adj": "-1000",
         "/proc/self/uid_map": "0 0 1", "/proc/self/gid_map": "0 0 1", "/proc/self/attr/current": "unconfined",
         "/proc/sys/kernel/ns_last_pid": "1"}


def write(path, value):
    descriptor = os.open(root + path, os.O_WRONLY)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def write_same(path):
    with open(root + path) as setting:
        value = setting.read()
    write(path, value)


for short in SAME:
    in_child(short, lambda: write_same("/proc/sys/" + short))
for path, value in OTHER.items():
    in_child(path, lambda: write(path, value))
done()
