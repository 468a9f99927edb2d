# Runs as root in a step of a recipe. Says of each try whether it went through.
try() { name=$1; shift; if "$@" >/dev/null 2>&1; then echo "THROUGH $name"; else echo "held $name"; fi; }
echo lawful > /srv/lawful
try mount mount -t tmpfs none /mnt
try bind mount --bind /etc /mnt
try remount mount -o remount,rw /.bellglass/upper
try upper touch /.bellglass/upper/planted
try guest sh -c 'echo x > /.bellglass/guest'
try channel touch /.bellglass/channel/planted
try spool sh -c 'mknod /dev/sda b 8 0 && cat /dev/sda'
try device mknod /srv/null c 1 3
try whiteout mknod /srv/white c 0 0
try trace python3 -c 'import ctypes,sys; sys.exit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) != 0)'
try memory sh -c 'cat /proc/1/mem || cat /proc/1/environ || cat /proc/1/maps'
try descriptors sh -c 'for one in /proc/1/fd/*; do readlink $one && exit 0; cat < $one && exit 0; done; exit 1'
try root ls /proc/1/root/
try unshare unshare --user --map-root-user true
try chroot chroot / true
try hostname hostname evil
try trusted python3 -c 'import os; os.setxattr("/srv", "trusted.overlay.opaque", b"y")'
try attribute python3 -c 'import os; os.setxattr("/bin/true", "security.capability", bytes.fromhex("0100000200000000000000000000000000000000"))'
try raw python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'
try outside curl -sS --max-time 5 http://packages.bellglass/python/simple/idna/ --fail
# What may be done, and must not last.
python3 -c 'import os; os.setxattr("/etc", "user.overlay.opaque", b"y"); os.setxattr("/srv/lawful", "user.own", b"y")'
cp /bin/true /srv/root-shell; chmod 6755 /srv/root-shell
rm -rf /workspace /home 2>/dev/null; rm -rf /tmp/* 2>/dev/null
sed -i '/sandbox/d' /etc/passwd; echo 'sandbox:x:0:0::/:/bin/sh' >> /etc/passwd
rm -f /etc/resolv.conf; ln -s /etc/shadow /etc/resolv.conf
mkdir -p /srv/hidden; echo x > '/srv/.wh.lawful'; echo x > '/srv/hidden/.wh..wh..opq'
(setsid sh -c 'while :; do echo later >> /srv/later; done' >/dev/null 2>&1 &)
kill -STOP 1 2>/dev/null; kill -KILL 1 2>/dev/null
exit 0
