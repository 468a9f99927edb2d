# An allowed host on ports that are not, and everything that is no TCP.
for port in (22, 25, 2375, 5432, 8080):
    every_way("good.example", port)
    every_way("93.184.216.34", port)
for thing, family, kind, protocol in (("udp", socket.AF_INET, socket.SOCK_DGRAM, 0), ("udplite", socket.AF_INET, socket.SOCK_DGRAM, 136),
                                      ("sctp", socket.AF_INET, socket.SOCK_STREAM, 132), ("icmp", socket.AF_INET, socket.SOCK_RAW, 1),
                                      ("ping", socket.AF_INET, socket.SOCK_DGRAM, 1), ("gre", socket.AF_INET, socket.SOCK_RAW, 47),
                                      ("esp", socket.AF_INET, socket.SOCK_RAW, 50), ("packet", 17, socket.SOCK_RAW, 0x300)):
    def send(family=family, kind=kind, protocol=protocol):
        with socket.socket(family, kind, protocol) as one:
            one.settimeout(3)
            if family == 17:
                one.bind(("lo" if sys.argv[1:] == ["inside"] else "out0", 0))
                one.send(b"\xff" * 64)
                if sys.argv[1:] == ["inside"]:
                    refused("only the loopback interface")
                return
            one.connect(("93.184.216.34", 80))
            one.send(b"\x08\x00\xf7\xff\x00\x00\x00\x00")
    attempt(thing, send)
done()
