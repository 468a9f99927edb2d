# The whole environment, of this process, its parent and process 1; only names are shown.
for source in ("self", str(os.getppid()), "1"):
    try:
        with open("/proc/%s/environ" % source, "rb") as environ:
            for entry in environ.read().split(b"\0"):
                if entry:
                    print(source if source in ("self", "1") else "parent", entry.split(b"=")[0].decode())
    except OSError as error:
        print("environ-of-" + source, name(error.errno))
