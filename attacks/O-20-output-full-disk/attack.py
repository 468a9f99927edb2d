# `fill` takes all room on the sandbox's disk. `write BYTES` writes so many bytes and a last line; `hold BYTES` then waits.
import time

if sys.argv[1] == "fill":
    with open("/workspace/all", "wb", buffering=0) as file:
        for piece in (1 << 20, 4096):
            try:
                while True:
                    file.write(b"x" * piece)
            except OSError as error:
                print("full", name(error.errno))
else:
    left = int(sys.argv[2])
    line = b"%09d\n"
    number = 0
    while left > 0:
        piece = b"".join(line % (number + index) for index in range(1000))[:left]
        sys.stdout.buffer.write(piece)
        left -= len(piece)
        number += 1000
    sys.stdout.buffer.write(b"last line\n")
    sys.stdout.buffer.flush()
    if sys.argv[1] == "hold":
        time.sleep(120)
