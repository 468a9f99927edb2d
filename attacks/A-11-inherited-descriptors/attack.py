# What the first process has open, beside its three.
listing = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
numbers = sorted(int(number) for number in os.listdir(listing))
for number in numbers:
    if number in (0, 1, 2):
        continue
    try:
        target = os.readlink("/proc/self/fd/%d" % number)
    except OSError:
        continue
    if target != "/proc/self/fd" and not target.startswith("/proc/%d/fd" % os.getpid()):
        say("descriptor-%d-%s" % (number, target.replace(" ", "_")), "ok")
for number in (0, 1, 2):
    target = os.readlink("/proc/self/fd/%d" % number)
    print("standard %d" % number, "directory" if os.path.isdir("/proc/self/fd/%d" % number) else target.split(":")[0])
done()
