# Single attempts from inside a sandbox; each line says what came of it.
import ctypes, errno, fcntl, os, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def t(name, f):
    try: print(name, "->", f(), flush=True)
    except OSError as e: print(name, "->", errno.errorcode.get(e.errno, e.errno), flush=True)
    except Exception as e: print(name, "->", type(e).__name__, e, flush=True)
def sc(n, *a):
    ctypes.set_errno(0); r = libc.syscall(ctypes.c_long(n), *[x if isinstance(x, ctypes.c_char_p) else ctypes.c_long(x) for x in a])
    if r < 0: raise OSError(ctypes.get_errno(), "")
    return r
for d in ("/dev/zero", "/dev/null", "/dev/urandom", "/etc/hosts"):
    t("utime " + d, lambda: (os.utime(d), os.stat(d).st_mtime)[1])
    t("chmod " + d, lambda: os.chmod(d, 0o666)); t("setxattr " + d, lambda: os.setxattr(d, "user.x", b"1"))
    t("lease " + d, lambda: fcntl.fcntl(os.open(d, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK))
    t("async owner " + d, lambda: fcntl.fcntl(os.open(d, os.O_RDONLY), fcntl.F_SETOWN, os.getpid()))
import signal; signal.signal(signal.SIGIO, signal.SIG_IGN)
t("dnotify /etc", lambda: fcntl.fcntl(os.open("/etc", os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS | fcntl.DN_MULTISHOT))
t("add_key user", lambda: sc(248, ctypes.c_char_p(b"user"), ctypes.c_char_p(b"x"), ctypes.c_char_p(b"y"), 1, -4))
t("fanotify_init", lambda: sc(300, 0, 0)); t("open_by_handle_at", lambda: sc(304, -100, 0, 0)); t("name_to_handle_at", lambda: sc(303, -100, ctypes.c_char_p(b"/etc/hosts"), 0, 0, 0))
t("unshare user", lambda: sc(272, 0x10000000)); t("mount", lambda: sc(165, ctypes.c_char_p(b"x"), ctypes.c_char_p(b"/tmp"), ctypes.c_char_p(b"tmpfs"), 0, 0))
t("mknod null", lambda: os.mknod("/tmp/n", 0o020666, os.makedev(1, 3))); t("setuid 0", lambda: os.setuid(0))
t("landlock/statmount", lambda: sc(457, 0, 0, 0, 0)); t("io_uring", lambda: sc(425, 1, 0)); t("userfaultfd", lambda: sc(323, 0)); t("bpf", lambda: sc(321, 0, 0, 0)); t("perf", lambda: sc(298, 0, 0, -1, -1, 0))
t("write cgroup", lambda: open("/sys/fs/cgroup/memory/memory.limit_in_bytes", "w").write("-1")); t("write cgroup2", lambda: open("/sys/fs/cgroup/memory.max", "w").write("max"))
t("write hostname", lambda: open("/proc/sys/kernel/hostname", "w").write("x")); t("core_pattern", lambda: open("/proc/sys/kernel/core_pattern", "w").write("|/x"))
t("read core_pattern", lambda: open("/proc/sys/kernel/core_pattern").read().strip())
t("guest write", lambda: open("/.bellglass/guest", "r+b")); t("spool list", lambda: os.listdir("/.bellglass/spool")); t("channel", lambda: os.listdir("/.bellglass"))
t("proc1 root", lambda: os.listdir("/proc/1/root")); t("proc1 environ", lambda: open("/proc/1/environ").read()); t("proc1 fd", lambda: os.listdir("/proc/1/fd"))
t("own environ", lambda: [x for x in open("/proc/self/environ").read().split("\0") if "PROXY" not in x.upper()])
t("sockets", lambda: os.popen("find / -xdev -type s 2>/dev/null; find /run /var/run /tmp -type s 2>/dev/null").read().split())
t("interfaces", lambda: [i[1] for i in socket.if_nameindex()]); t("route", lambda: open("/proc/net/route").read().count("\n")); t("ipv6 route", lambda: [l.split()[-1] for l in open("/proc/net/ipv6_route")])
def dial(fam, addr):
    s = socket.socket(fam, socket.SOCK_STREAM); s.settimeout(2); s.connect(addr); return "connected"
for a in (("127.0.0.1", int(os.environ.get("HOSTPORT", "1"))), ("169.254.169.254", 80), ("10.0.2.2", 80), ("10.0.2.3", 53), ("169.254.1.2", 80), ("8.8.8.8", 53), ("172.17.0.1", 80)): t("tcp %s:%d" % a, lambda: dial(socket.AF_INET, a))
for a in (("::1", 80), ("fe80::1", 80), ("fd00::2", 80), ("2001:4860:4860::8888", 53)): t("tcp6 %s" % a[0], lambda: dial(socket.AF_INET6, a))
t("dns", lambda: socket.gethostbyname("host.containers.internal")); t("dns2", lambda: socket.gethostbyname("deb.debian.org")); t("resolv", lambda: open("/etc/resolv.conf").read().split()); t("hosts", lambda: open("/etc/hosts").read().split()); t("containerenv", lambda: open("/run/.containerenv").read())
t("vsock", lambda: dial(40, (2, 1024))); t("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).bind((0, 0))); t("packet", lambda: socket.socket(17, socket.SOCK_RAW, 3)); t("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)); t("alg", lambda: socket.socket(38, socket.SOCK_SEQPACKET, 0))
t("mounts with host names", lambda: sorted({l.split()[3] for l in open("/proc/self/mountinfo") if "/var/" in l.split()[3] or "/home" in l.split()[3]})[:6])
t("cgroup names", lambda: open("/proc/self/cgroup").read().split()[-2:])
