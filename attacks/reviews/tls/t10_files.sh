#!/bin/bash
# What the server does with odd certificate and key files, and which addresses it lets speak plainly. BELLGLASS, BELLGLASS_CERTS; DATA is a fresh directory.
C=$BELLGLASS_CERTS; D=$(mktemp -d ${TMPDIR:-/var/tmp}/odd.XXXX); chmod 711 $D
try() { # name, cert, key, listen, more
  printf 'pool_ready = 0\nlog = "text"\ntls_certificate = "%s"\ntls_key = "%s"\n%s\n' "$2" "$3" "${5:-}" > $D/c.toml; rm -f $D/out
  env -u BELLGLASS_SERVER timeout 5 $BELLGLASS --data $D/data serve --config $D/c.toml --listen ${4:-127.0.0.1:0} --first-key $D/k > $D/out 2>&1 </dev/null; echo "$1: $(grep -E 'serves|bellglass:|WARN|ERROR' $D/out | head -3 | tr '\n' ' ' | cut -c1-230)"; }
try "key of another certificate" $C/good.pem $C/wrong.key
try "expired certificate" $C/expired.pem $C/expired.key
cp $C/good.key $D/w.key; chmod 666 $D/w.key; try "key that everybody can read and write (0666)" $C/good.pem $D/w.key
ln -sf $C/good.key $D/l.key; try "key that is a link" $C/good.pem $D/l.key
cat $C/good.pem $C/good.key > $D/both.pem; try "key inside the certificate file" $D/both.pem $D/both.pem
: > $D/empty.pem; try "empty certificate" $D/empty.pem $C/good.key; try "empty key" $C/good.pem $D/empty.pem
try "certificate only for clients" $C/client.pem $C/client.key; head -c 300 $C/good.pem > $D/cut.pem; try "half a certificate (written while it is read)" $D/cut.pem $C/good.key
mkfifo $D/fifo; try "key is a pipe that nobody writes" $C/good.pem $D/fifo; try "key is /dev/zero (3 s)" $C/good.pem /dev/zero 127.0.0.1:0
for l in 0.0.0.0:0 '[::]:0' '[::ffff:127.0.0.1]:0' '[::1]:0' 127.0.0.2:0; do printf 'pool_ready = 0\n' > $D/c.toml; env -u BELLGLASS_SERVER timeout 5 $BELLGLASS --data $D/data serve --config $D/c.toml --listen $l --first-key $D/k > $D/out 2>&1 </dev/null; echo "plain on $l: $(grep -E 'serves|bellglass:' $D/out | head -1 | cut -c1-120)"; done
rm -rf $D
