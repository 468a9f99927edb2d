# One line of so many bytes that never ends: `attack.py BYTES BYTE`. `attack.py lines BYTES` is somebody who reads lines: the control.
import subprocess


def line(count, byte):
    piece = bytes([byte]) * 65536
    while count > 0:
        count -= os.write(1, piece[:count])


def lines(count):
    writer = subprocess.Popen(["head", "-c", str(count), "/dev/zero"], stdout=subprocess.PIPE)
    held = writer.stdout.readline()
    print("held", len(held))


if sys.argv[1] == "lines":
    lines(int(sys.argv[2]))
else:
    line(int(sys.argv[1]), int(sys.argv[2]))
