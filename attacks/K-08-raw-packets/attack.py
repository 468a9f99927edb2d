# Raw packets, in every way there is to ask for them.
import socket

try:
    with open("/proc/sys/net/ipv4/ping_group_range", "w") as setting:
        setting.write("0 65535")
except OSError:
    pass
ASKED = {
    "inet raw": (socket.AF_INET, socket.SOCK_RAW, 1),
    "inet raw tcp": (socket.AF_INET, socket.SOCK_RAW, 6),
    "inet raw any": (socket.AF_INET, socket.SOCK_RAW, 255),
    "inet6 raw": (socket.AF_INET6, socket.SOCK_RAW, 58),
    "raw with flags": (socket.AF_INET, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 1),
    "inet packet": (socket.AF_INET, 10, 0x300),
    "packet raw": (17, socket.SOCK_RAW, 0x300),
    "packet dgram": (17, socket.SOCK_DGRAM, 0x300),
    "ping": (socket.AF_INET, socket.SOCK_DGRAM, 1),
}
for thing, (family, kind, protocol) in ASKED.items():
    in_child(thing, lambda: syscall(CALLS["socket"], family, kind, protocol))
done()
