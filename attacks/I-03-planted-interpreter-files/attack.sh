# Plants a line in everything that a Python reads. Each writes down who ran it.
version=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
site=$HOME/.local/lib/python$version/site-packages
mkdir -p "$site" "$HOME/.local/bin" "$HOME/.config/matplotlib" "$HOME/.ipython/profile_default/startup" /workspace /tmp/planted
line='import os; open("/tmp/planted/%d-%s" % (os.getuid(), os.environ.get("BELLGLASS_UID", "code")), "a").close()'
for place in "$site/usercustomize.py" "$site/sitecustomize.py" /workspace/sitecustomize.py /workspace/json.py /workspace/ctypes.py /workspace/IPython.py \
  /workspace/encodings.py /tmp/sitecustomize.py "$HOME/.ipython/profile_default/startup/00.py" "$HOME/.ipython/profile_default/ipython_config.py"; do
  echo "$line" > "$place"
done
echo "$line" > "$site/planted.pth"
echo 'backend: nonsense' > "$HOME/.config/matplotlib/matplotlibrc"
cp "$HOME/.config/matplotlib/matplotlibrc" /workspace/matplotlibrc
printf '#!/bin/sh\ntouch /tmp/planted/$(id -u)-program\nexec /usr/bin/python3 "$@"\n' > "$HOME/.local/bin/python3"
cp "$HOME/.local/bin/python3" /workspace/python3
chmod +x "$HOME/.local/bin/python3" /workspace/python3
chmod 777 /tmp/planted
echo planted
