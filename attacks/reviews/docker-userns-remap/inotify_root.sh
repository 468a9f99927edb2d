#!/bin/sh
# Needs: BELLGLASS_SERVER, BELLGLASS_API_KEY of a server on Docker with userns-remap, SANDBOX (an id) with h3.py in /workspace. Run as root of the machine.
"${BELLGLASS:-bellglass}" exec --timeout 60s "$SANDBOX" -- python3 -u /workspace/h3.py marks 5000 12 /tmp & held=$!
sleep 5
python3 -c "
import ctypes, os
l = ctypes.CDLL(None, use_errno=True)
print('root of the machine: inotify_init1 ->', l.inotify_init1(0), os.strerror(ctypes.get_errno()))"
wait $held
