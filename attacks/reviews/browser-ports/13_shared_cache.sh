#!/bin/sh
# What a cache in front of the server is told about an answer of a private port whose application says that it may be kept.
# Needs VICTIM_ID, VICTIM_TOKEN, PORTS (scheme://DOMAIN:PORT).
d='%7B%22headers%22%3A%5B%5B%22cache-control%22%2C%22public%2C+max-age%3D600%22%5D%5D%2C%22body%22%3A%22private%22%7D'
host=${PORTS#*://}; scheme=${PORTS%%:*}
curl -skD- -o /dev/null --resolve "*:${host##*:}:127.0.0.1" -H "cookie: __Host-bellglass=$VICTIM_TOKEN; bellglass=$VICTIM_TOKEN" "$scheme://8000-$VICTIM_ID.$host/r?d=$d"
