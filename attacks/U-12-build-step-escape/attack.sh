# Runs as root in a step of a recipe. Prints of each attempt whether it succeeded: `ok`, `held`, or `missing` if the program for it is
# missing. The variables are for the control, which runs some of the attempts (ONLY) at other places.
: "${PLACE:=/.bellglass}" "${DEVICES:=/dev}" "${DISK:=b 8 0}" "${NODES:=/srv}" "${PROGRAM:=/bin/true}"
try() {
    name=$1; shift
    if [ -n "$ONLY" ]; then case " $ONLY " in *" $name "*) ;; *) return ;; esac; fi
    if ! command -v "$1" >/dev/null; then echo "$name missing"
    elif "$@" >/dev/null 2>&1; then echo "$name ok"; else echo "$name held"; fi
}
[ -n "$ONLY" ] || echo lawful > /srv/lawful
try mount mount -t tmpfs none /mnt
try bind mount --bind /etc /mnt
try guest sh -c "echo x > $PLACE/guest"
try channel touch $PLACE/channel/planted
try disk sh -c "mknod $DEVICES/sda $DISK && head -c 1 $DEVICES/sda"
try device mknod $NODES/null c 1 3
try whiteout mknod $NODES/white c 0 0
# PTRACE_SEIZE does not stop process 1.
try trace python3 -c 'import ctypes,sys; sys.exit(ctypes.CDLL(None).ptrace(0x4206, 1, 0, 0) != 0)'
try memory sh -c 'cat /proc/1/mem || cat /proc/1/environ || cat /proc/1/maps'
try descriptors sh -c 'for one in /proc/1/fd/*; do readlink $one && exit 0; cat < $one && exit 0; done; exit 1'
try root ls /proc/1/root/
try unshare unshare --user --map-root-user true
try chroot chroot / true
try hostname python3 -c 'import socket; socket.sethostname("evil")'
try trusted python3 -c 'import os, sys; os.setxattr(sys.argv[1], "trusted.overlay.opaque", b"y")' $NODES
try attribute python3 -c 'import os, sys; os.setxattr(sys.argv[1], "security.capability", bytes.fromhex("0100000200000000000000000000000000000000"))' $PROGRAM
try raw python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'
[ -z "$ONLY" ] || exit 0
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
