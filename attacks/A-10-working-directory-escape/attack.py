# CVE-2024-21626: where this process stands. With `leak`, a directory is left open first and gone to through its descriptor.
if sys.argv[1:] == ["leak"]:
    descriptor = os.open("/etc", os.O_RDONLY | os.O_DIRECTORY)
    attempt("through a descriptor", lambda: os.chdir("/proc/self/fd/%d" % descriptor))
    print("at", os.getcwd())
    done()
print("at", os.getcwd())
for path in ("../../../../../../../../", "."):
    inside = os.stat(path)
print("root", "same" if os.path.samestat(os.stat("/"), os.stat("../../../../../../../../..")) else "other")
