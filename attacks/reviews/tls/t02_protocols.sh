#!/bin/bash
# Old protocols, weak ciphers, renegotiation, compression, resumption, early data, key update. BELLGLASS_TLS=host:port, BELLGLASS_CA=authority.
H=${BELLGLASS_TLS:-localhost:17473}; CA=$BELLGLASS_CA
s() { timeout 5 openssl s_client -connect $H -CAfile $CA -servername localhost "$@" 2>&1 </dev/null; }
for v in tls1 tls1_1 tls1_2 tls1_3; do echo "$v: $(s -$v -cipher 'ALL:@SECLEVEL=0' | grep -aE 'New,|alert|Cipher is' | head -2 | tr '\n' ' ')"; done
for c in 'aNULL:@SECLEVEL=0' 'eNULL:@SECLEVEL=0' 'AES128-SHA:@SECLEVEL=0' 'ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0' 'ECDHE-ECDSA-AES256-CBC-SHA384:@SECLEVEL=0' '3DES:@SECLEVEL=0' 'RC4:@SECLEVEL=0' 'ECDHE-ECDSA-AES128-GCM-SHA256'; do echo "1.2 $c: $(s -tls1_2 -cipher "$c" | grep -aE 'New,|alert|no cipher|Error with' | head -1)"; done
for g in P-256 P-384 X25519 P-521 ffdhe2048; do echo "group $g: $(s -groups $g | grep -aE 'New,|alert' | head -1)"; done
echo "fallback SCSV with 1.2: $(s -tls1_2 -fallback_scsv | grep -aE 'New,|alert' | head -1)"
echo "compression: $(s -tls1_2 | grep -a Compression) | renegotiation: $(s -tls1_2 | grep -a 'Secure Renegotiation' | head -1)"
echo "client-initiated renegotiation (1.2, twice R):"; (printf 'GET /healthz HTTP/1.1\r\nhost: localhost\r\n'; sleep .5; echo R; sleep 1; printf '\r\n'; sleep 1) | timeout 6 openssl s_client -connect $H -CAfile $CA -tls1_2 -servername localhost 2>&1 | grep -aE 'RENEG|error|alert|HTTP/1|no_renegotiation' | head -4
f=$(mktemp); s -tls1_3 -sess_out $f >/dev/null; (printf 'GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n'; sleep 1) | timeout 5 openssl s_client -connect $H -CAfile $CA -tls1_3 -servername localhost -sess_out $f >/dev/null 2>&1
echo "resumption 1.3: $(s -tls1_3 -sess_in $f | grep -aE '^(New|Reused)' | head -1)"; openssl sess_id -in $f -noout -text 2>/dev/null | grep -aE 'lifetime|Max Early'
printf 'GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n' > $f.e; echo "early data: $(s -tls1_3 -sess_in $f -early_data $f.e | grep -aiE 'early data' | head -1)"
echo "ticket of one name used with another: $(timeout 5 openssl s_client -connect $H -CAfile $CA -tls1_3 -servername 8000-x.sandbox.localhost -sess_in $f </dev/null 2>&1 | grep -aE '^(New|Reused)' | head -1)"
rm -f $f $f.e
echo "100 key updates in one connection, then a request:"; (for i in $(seq 100); do echo K; done; sleep 1; printf 'GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n'; sleep 1) | timeout 8 openssl s_client -connect $H -CAfile $CA -tls1_3 -servername localhost 2>&1 | grep -aE 'HTTP/1|alert|error' | head -3
