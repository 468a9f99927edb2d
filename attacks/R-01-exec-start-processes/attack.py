# CVE-2019-5736 as a race: for some seconds, every program of every process that shows up, opened for writing;
# and with it every descriptor, directory and memory of processes that are only just being born.
import stat, time

end = time.monotonic() + float(sys.argv[1])
looks = opened = 0
answers = {}
own = {str(os.getpid())}


def is_guest(entry):
    with open("/proc/%s/comm" % entry) as comm:
        return comm.read().strip() == "guest"


def look_at_descriptors(entry):
    """Tries to open what process 1, or a child of it that is not yet another program, has open."""
    who = "process-1" if entry == "1" else "half-born"
    try:
        if not is_guest(entry):
            return
        numbers = os.listdir("/proc/%s/fd" % entry)
    except OSError as error:
        answers.setdefault(who, set()).add(name(error.errno))
        return
    for number in numbers:
        path = "/proc/%s/fd/%s" % (entry, number)
        for flags in (os.O_RDONLY, os.O_WRONLY):
            try:
                target = os.readlink(path)
                descriptor = os.open(path, flags | os.O_NONBLOCK)
                # A device from which nothing can be read is `/dev/null`, also where a kernel of its own shows no number.
                is_null = stat.S_ISCHR(os.fstat(descriptor).st_mode) and (flags == os.O_WRONLY or not os.read(descriptor, 1))
                os.close(descriptor)
                # Everybody may have these two: `/dev/null`, and what `/proc` shows to all. And a child that has become its program
                # since it was looked at is a process of the same user, which may open what belongs to that user.
                if not is_null and not target.startswith("/proc") and is_guest(entry):
                    answers.setdefault(who, set()).add("ok:%s:%s" % ("read" if flags == os.O_RDONLY else "write", target))
            except OSError as error:
                answers.setdefault(who, set()).add(name(error.errno))


while time.monotonic() < end:
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or entry in own:
            continue
        looks += 1
        for what, flags in (("exe", os.O_WRONLY), ("mem", os.O_RDWR), ("cwd", os.O_RDONLY), ("root", os.O_RDONLY)):
            try:
                descriptor = os.open("/proc/%s/%s" % (entry, what), flags)
                target = os.readlink("/proc/self/fd/%d" % descriptor)
                os.close(descriptor)
                answers.setdefault(what, set()).add("ok:" + target.split("/")[-1] if what == "exe" else "opened")
            except OSError as error:
                answers.setdefault(what, set()).add(name(error.errno))
        look_at_descriptors(entry)
for what, seen in answers.items():
    print("answers", what, "+".join(sorted(seen)))
for what in ("exe", "half-born", "process-1"):
    say(what, "ok" if any(answer.startswith("ok") for answer in answers.get(what, ())) else "stopped")
print("looks", looks)
done()
