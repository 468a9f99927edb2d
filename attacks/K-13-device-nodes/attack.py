# Device nodes: those of the host by their names, and new ones in every place that can be written.
# Arguments: the directories to make nodes in; `harmless` instead of the first asks for nodes that hurt nobody.
import stat

CHARACTER, BLOCK = stat.S_IFCHR, stat.S_IFBLK
NODES = {"mem": (CHARACTER, 1, 1), "kmem": (CHARACTER, 1, 2), "port": (CHARACTER, 1, 4), "kmsg": (CHARACTER, 1, 11),
         "loop-control": (CHARACTER, 10, 237), "loop0": (BLOCK, 7, 0), "fuse": (CHARACTER, 10, 229),
         "cuse": (CHARACTER, 10, 203), "kvm": (CHARACTER, 10, 232), "net/tun": (CHARACTER, 10, 200),
         "uinput": (CHARACTER, 10, 223), "vhost-net": (CHARACTER, 10, 238), "vhost-vsock": (CHARACTER, 10, 241),
         "sda": (BLOCK, 8, 0), "vda": (BLOCK, 254, 0), "nvme0n1": (BLOCK, 259, 0), "dri/card0": (CHARACTER, 226, 0),
         "userfaultfd": (CHARACTER, 10, 126), "rtc": (CHARACTER, 10, 135), "hpet": (CHARACTER, 10, 228)}
places = sys.argv[1:]
if places[:1] == ["harmless"]:
    NODES, places = {"null": (CHARACTER, 1, 3), "zero": (CHARACTER, 1, 5)}, places[1:]
for device, (kind, major, minor) in NODES.items():
    if device not in ("null", "zero"):
        in_child("open " + device, lambda: os.open("/dev/" + device, os.O_RDONLY | os.O_NONBLOCK))
    for place in places:
        path = "%s/%s-%d" % (place, device.replace("/", "-"), os.getpid())
        in_child("mknod %s in %s" % (device, place), lambda: os.mknod(path, kind | 0o666, os.makedev(major, minor)))
        if os.path.exists(path):
            in_child("use %s in %s" % (device, place), lambda: os.open(path, os.O_RDWR | os.O_NONBLOCK))
            os.unlink(path)
print("present", ",".join(sorted(os.listdir("/dev"))))
done()
