# Asks for a host whose sixteen addresses never answer, and leaves as soon as it is dialled, again and again. Argument: for how many seconds.
import collections

HOST = "silent.example:443"
print("begun", flush=True)
end, count, recent = time.monotonic() + float(sys.argv[1]), 0, collections.deque()
while time.monotonic() < end:
    try:
        stream = dial(PROXY)
        stream.sendall(f"CONNECT {HOST} HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode())
        recent.append(stream)
        count += 1
    except OSError:
        pass
    time.sleep(0.009)
    # Those that have been there for a while are being dialled by now.
    if len(recent) > 40:
        recent.popleft().close()
print("left", count, flush=True)
sys.exit(0)
