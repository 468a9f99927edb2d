# The disk, filled with bytes; then what is deleted but open, sparse, and promised.
path = "/workspace/fill"
written, answer, block = 0, "none", b"x" * (1 << 16)
descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
try:
    while written < 1 << 30:
        written += os.write(descriptor, block)
except OSError as error:
    answer = name(error.errno)
print("written", written >> 20)
print("answer", answer)
os.unlink(path)
# The descriptor still holds every block: nothing is free.
in_child("deleted but open", lambda: os.posix_fallocate(os.open("/workspace/more", os.O_CREAT | os.O_RDWR), 0, 8 << 20))
os.close(descriptor)
in_child("promised", lambda: os.posix_fallocate(os.open("/workspace/promise", os.O_CREAT | os.O_RDWR), 0, 1 << 40))
in_child("other place", lambda: os.posix_fallocate(os.open("/home/sandbox/promise", os.O_CREAT | os.O_RDWR), 0, 1 << 30))
for name_ in ("more", "promise"):
    try:
        os.unlink("/workspace/" + name_)
    except OSError:
        pass
if sys.argv[1:] == ["stay full"]:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            os.write(descriptor, block)
    except OSError as error:
        print("stays", name(error.errno))
done()
