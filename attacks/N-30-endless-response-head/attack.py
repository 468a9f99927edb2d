# Asks a host for heads that never end, and holds the connections. Argument: how many.
import select

waiting, refusals = [], 0
for number in range(int(sys.argv[1])):
    stream = dial(PROXY)
    stream.sendall(b"GET http://good.example/hang HTTP/1.1\r\nhost: good.example\r\n\r\n")
    waiting.append(stream)
end = time.monotonic() + 6
while waiting and (left := end - time.monotonic()) > 0:
    for stream in select.select(waiting, [], [], left)[0]:
        waiting.remove(stream)
        refusals += b" 502 " in stream.recv(65536).split(b"\r\n")[0]
print("refused", refusals, "waiting", len(waiting), flush=True)
time.sleep(2)
sys.exit(0)
