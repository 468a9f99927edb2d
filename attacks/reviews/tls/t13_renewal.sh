#!/bin/bash
# A certificate that is replaced under a running server, and the signals that renewal scripts send. BELLGLASS_TLS, BELLGLASS_CA, BELLGLASS_PID, BELLGLASS_CERTS.
s() { timeout 4 openssl s_client -connect ${BELLGLASS_TLS} -servername localhost </dev/null 2>/dev/null | openssl x509 -noout -serial 2>/dev/null; }
echo "served: $(s)"; cp $BELLGLASS_CERTS/good.pem $BELLGLASS_CERTS/keep.pem; : > $BELLGLASS_CERTS/good.pem; echo "file emptied, served: $(s)"; cp $BELLGLASS_CERTS/wrong.pem $BELLGLASS_CERTS/good.pem; echo "file replaced by one of another key, served: $(s)"; cp $BELLGLASS_CERTS/keep.pem $BELLGLASS_CERTS/good.pem
kill -HUP $BELLGLASS_PID 2>/dev/null; sleep 1.5; echo "after HUP: $(kill -0 $BELLGLASS_PID 2>/dev/null && echo lives || echo gone) $(s)"
