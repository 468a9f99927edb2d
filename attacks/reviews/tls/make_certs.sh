#!/bin/bash
# Makes an authority and certificates in the directory $1: good (localhost, 127.0.0.1, *.sandbox.localhost), wrong host, expired, self-signed, for clients only.
set -eu; cd "$1"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=attack-ca -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign -keyout ca.key -out ca.pem 2>/dev/null
make() { # name, names, days or dates, usage
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x -keyout $1.key -out $1.csr 2>/dev/null
  printf "subjectAltName=%s\nbasicConstraints=critical,CA:FALSE\nextendedKeyUsage=%s\n" "$2" "$4" > $1.ext
  if [ "$3" = expired ]; then faketime -f '-60d' openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile $1.ext -out $1.pem 2>/dev/null
  else openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 20 -extfile $1.ext -out $1.pem 2>/dev/null; fi; }
make good "DNS:localhost,DNS:*.sandbox.localhost,IP:127.0.0.1" ok serverAuth
make wrong "DNS:other.example" ok serverAuth
make expired "DNS:localhost,IP:127.0.0.1" expired serverAuth
make client "DNS:localhost,IP:127.0.0.1" ok clientAuth
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=localhost -addext 'subjectAltName=DNS:localhost,IP:127.0.0.1' -addext basicConstraints=critical,CA:FALSE -keyout self.key -out self.pem 2>/dev/null
