# Names asked for elsewhere: resolvers that speak over TCP, TLS and HTTPS.
question = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04good\x07example\x00\x00\x01\x00\x01"
for host in ("1.1.1.1", "8.8.8.8", "93.184.216.53"):
    every_way(host)
    attempt(f"{host}:443/tls", lambda: tls(tunnel(f"{host}:443"), "good.example"))

    def datagram(host=host):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.settimeout(2)
            one.sendto(question, (host, 53))
            one.recv(512)
    if host == "93.184.216.53":
        attempt(f"{host}/datagram", datagram)
done()
