# What the platform itself stands on, in a private network.
for host in ("10.0.0.5", "private.example", "192.168.1.1", "172.16.0.5", "198.18.0.5"):
    every_way(host, 5432)
    every_way(host, 2375)
done()
