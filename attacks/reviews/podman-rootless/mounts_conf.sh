#!/bin/sh
# As the user of a rootless Podman whose service runs. Needs: BELLGLASS, a template base. Puts ~/.config/containers/mounts.conf there, and removes it.
set -eu
mkdir -p "$HOME/private" "$HOME/.config/containers"; echo key-of-the-user >"$HOME/private/key"
[ ! -e "$HOME/.config/containers/mounts.conf" ] || { echo "there is a mounts.conf already" >&2; exit 1; }
echo "$HOME/private:/run/secrets" >"$HOME/.config/containers/mounts.conf"
"$BELLGLASS" --backends podman run --memory 128M --disk 64M -- sh -c 'cat /run/secrets/key; grep -c secrets /proc/self/mountinfo' || true
rm "$HOME/.config/containers/mounts.conf"; rm -r "$HOME/private"
