# Threads until no more can be made; with `bomb`, processes that each make threads, for as long as they are let.
function = ctypes.cast(libc.pause, ctypes.c_void_p)


def thread():
    """Starts a thread that only waits; gives back the error."""
    return libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, function, None)


if sys.argv[1:] == ["bomb"]:
    print("bomb started", flush=True)
    while True:
        try:
            os.fork()
        except OSError:
            pass
        thread()
made, answer = 1, "none"
while made < 5000:
    error = thread()
    if error:
        answer = name(error)
        break
    made += 1
print("threads", made)
print("answer", answer, flush=True)
os._exit(0)
