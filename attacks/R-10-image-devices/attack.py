# Device nodes that an image brings along: `make PLACE` makes them and tries the harmless ones, `use PLACE` tries all.
import stat

CHARACTER, BLOCK = stat.S_IFCHR, stat.S_IFBLK
NAMED = {"mem": (CHARACTER, 1, 1), "null": (CHARACTER, 1, 3), "port": (CHARACTER, 1, 4), "zero": (CHARACTER, 1, 5),
         "kmsg": (CHARACTER, 1, 11), "tty": (CHARACTER, 5, 0), "ptmx": (CHARACTER, 5, 2), "loop0": (BLOCK, 7, 0),
         "sda": (BLOCK, 8, 0), "tun": (CHARACTER, 10, 200), "cuse": (CHARACTER, 10, 203),
         "uinput": (CHARACTER, 10, 223), "fuse": (CHARACTER, 10, 229), "kvm": (CHARACTER, 10, 232),
         "loop-control": (CHARACTER, 10, 237), "vhost-net": (CHARACTER, 10, 238), "vda": (BLOCK, 254, 0)}
NODES = dict(NAMED)
for major in range(0, 256, 4):
    NODES["c%d" % major] = (CHARACTER, major, 0)
    NODES["b%d" % major] = (BLOCK, major, 0)
act, place = sys.argv[1], sys.argv[2]
os.umask(0)
for device, (kind, major, minor) in NODES.items():
    path = "%s/%s" % (place, device)
    if act == "make":
        if (major, minor) != (0, 0) and not os.path.exists(path):
            os.mknod(path, kind | 0o666, os.makedev(major, minor))
        if device not in ("null", "zero", "fuse"):
            continue
    elif not os.path.exists(path):
        continue
    in_child("open " + device, lambda: os.open(path, os.O_RDWR | os.O_NONBLOCK))
done()
