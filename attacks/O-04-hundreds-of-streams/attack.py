# Adds one byte a second to a file that others follow, for so many seconds: `attack.py FILE SECONDS`.
import time

end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    with open(sys.argv[1], "ab") as drop:
        drop.write(b"d")
    time.sleep(1)
