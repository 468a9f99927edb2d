"""Plants in a folder, named by its argument, what whoever keeps its files trips over."""

import os
import socket
import subprocess
import sys

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
os.chdir(folder)


def plant(act):
    """What the file system does not take is not there."""
    try:
        act()
    except OSError as error:
        print(f"not planted: {error}")


plant(lambda: os.symlink("/etc/passwd", "linked.csv"))
plant(lambda: os.symlink("/.bellglass", "guest"))
plant(lambda: os.symlink("..", "up"))
plant(lambda: os.mkfifo("waits.csv"))
plant(lambda: socket.socket(socket.AF_UNIX).bind("socket.csv"))
plant(lambda: os.truncate(os.open("sparse.csv", os.O_CREAT | os.O_WRONLY), 1 << 39))
for name in [b"line\nbreak.csv", b"..%2f..%2fup.csv", b"...csv", b"\xff\xfe.csv", b"\xff\xfd.csv", b"-rf.csv", b"a" * 250 + b".csv", b"#.csv", b"%00.csv"]:
    plant(lambda name=name: open(os.path.join(folder.encode(), name), "wb").write(b"planted"))
subprocess.Popen(
    [sys.executable, "-c", "while True: open('changing.csv', 'w').write('x' * 100000)"],
    start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)
# A naive copier: what it would take along.
print("THROUGH linked" if "root:" in open("linked.csv").read() else "held linked")
if "many" in sys.argv:
    os.makedirs("many")
    for number in range(11000):
        open(f"many/{number}.csv", "w").close()
print("planted")
