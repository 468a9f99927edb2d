# Asks an allowed host for something as fast as it is let, half of it for the same, half each time for something else. Argument: how often.
asked, number = 0, 0
stream = dial(PROXY)
while asked < int(sys.argv[1]):
    path = "/quick" if number % 2 else f"/{number}/{'x' * 100}"
    number += 1
    stream.sendall(f"GET http://good.example{path} HTTP/1.1\r\nhost: good.example\r\n\r\n".encode())
    said = everything(stream)
    if b" 429 " in said.split(b"\r\n")[0]:
        time.sleep(0.02)
    elif is_whole(said):
        asked += 1
    else:
        stream.close()
        stream = dial(PROXY)
print("asked", asked, flush=True)
sys.exit(0)
