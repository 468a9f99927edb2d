#!/bin/sh
# Needs: podman; BELLGLASS (the executable), DATA (a data directory that has the template base on Podman), WORK (an empty directory).
# Shows that a mount which Podman adds by itself reaches a sandbox.
set -eu
mkdir -p "$WORK/private"; echo a-file-of-the-host >"$WORK/private/file"; chmod 777 "$WORK/private"
printf '[containers]\nvolumes=["%s:/secret"]\n' "$WORK/private" >"$WORK/containers.conf"
CONTAINERS_CONF="$WORK/containers.conf" podman system service --time=120 "unix://$WORK/podman.sock" & service=$!
sleep 3
CONTAINER_HOST="unix://$WORK/podman.sock" "$BELLGLASS" --data "$DATA" --backends podman run --memory 128M --disk 64M -- \
    sh -c 'cat /secret/file; echo written-inside >/secret/new; ls -l /secret' || true
ls -ln "$WORK/private"; kill $service
