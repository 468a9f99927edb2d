#!/bin/sh
# Makes projects victim and evil with one sandbox each, app.py on port 8000 of both. Needs BELLGLASS_URL, BELLGLASS_API_KEY (an administrator's).
# BELLGLASS names the executable. Writes variables for the other scripts to stdout.
set -eu
B=${BELLGLASS:-bellglass}; here=$(dirname "$0")
export BELLGLASS_SERVER=$BELLGLASS_URL
BELLGLASS_API_KEY=$BELLGLASS_API_KEY; export BELLGLASS_API_KEY
for p in victim evil; do
  $B project set $p >/dev/null
  key=$($B key create --project $p --role write 2>/dev/null | grep -Eo '[0-9a-f]{64}' | head -1)
  P=$(echo $p | tr a-z A-Z)
  id=$(BELLGLASS_API_KEY=$key $B create --name web --idle none --ttl 3h 2>/dev/null || BELLGLASS_API_KEY=$key $B create --name web)
  BELLGLASS_API_KEY=$key $B cp "$here/app.py" web:/workspace/app.py >/dev/null
  for n in 8000 9000; do BELLGLASS_API_KEY=$key $B exec --detach --timeout none web -- python3 /workspace/app.py $n >/dev/null; done
  token=$(curl -sk -H "authorization: Bearer $key" "$BELLGLASS_URL/v1/sandboxes/web/ports/8000" | sed 's/.*"token":"\([^"]*\)".*/\1/')
  echo "${P}_KEY=$key ${P}_ID=$id ${P}_TOKEN=$token"
done
