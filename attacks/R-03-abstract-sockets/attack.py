# CVE-2020-15257: abstract sockets of the host, which no file mode guards. The argument is one that somebody listens at.
import socket

dialler = socket.socket(socket.AF_UNIX)
attempt("dial", lambda: dialler.connect("\0" + sys.argv[1]))
try:
    with open("/proc/net/unix") as table:
        names = [line.split()[-1] for line in table if "@" in line]
except OSError:
    names = []
for each in names:
    say("sees " + each, "ok")
done()
