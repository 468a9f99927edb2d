# . env.sh plain|tls   (variables of the set-up, from the files that setup.sh wrote to $STATE)
set -a; . $STATE/$1.env
if [ $1 = tls ]; then BELLGLASS_URL=https://127.0.0.1:17443 PORTS=https://ports.test:17443 SPKI=$(cat $STATE/spki); else BELLGLASS_URL=http://127.0.0.1:17070 PORTS=${PLAIN_PORTS:-http://sandbox.localhost:17070}; fi; set +a
