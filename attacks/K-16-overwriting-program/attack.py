# CVE-2019-5736: a handle on the program of another process, opened for writing once that has ended.
# With an argument, a victim is run: a copy of a program that this user owns.
import shutil, subprocess, time

victim = None
if len(sys.argv) > 1:
    shutil.copy("/bin/sleep", sys.argv[1])
    os.chmod(sys.argv[1], 0o755)
    victim = subprocess.Popen([sys.argv[1], "0.3"])
    time.sleep(0.1)

handles = {}
for entry in filter(str.isdigit, os.listdir("/proc")):
    path = "/proc/%s/exe" % entry
    who = "process 1" if entry == "1" else "itself" if int(entry) == os.getpid() else "another"
    for way, flags in (("write", os.O_WRONLY), ("truncate", os.O_RDWR)):
        in_child("%s %s" % (way, who), lambda: os.open(path, flags))
    try:
        handles[who] = os.open(path, os.O_PATH)
    except OSError as error:
        say("hold " + who, name(error.errno))
for path in ("/.bellglass/guest", "/proc/1/root/.bellglass/guest", "/proc/1/map_files"):
    in_child(path, lambda: os.open(path, os.O_RDWR))
if victim:
    victim.wait()
for who, handle in handles.items():
    in_child("later " + who, lambda: os.open("/proc/self/fd/%d" % handle, os.O_WRONLY))
done()
