# Runs as root in a workstation whose project may have root. Prints of each attempt whether it succeeded: `ok`, `held`, or `missing`
# if the program for it is missing. The variables are for the control, which runs some of the attempts (ONLY) at other places.
: "${PLACE:=/.bellglass}" "${KERNEL:=/proc}" "${DEVICES:=/dev}" "${DISK:=b 8 0}" "${NODES:=/srv}" "${FILE:=/var/tmp/all}" "${MEBIBYTES:=4096}"
try() {
    name=$1; shift
    if [ -n "$ONLY" ]; then case " $ONLY " in *" $name "*) ;; *) return ;; esac; fi
    if ! command -v "$1" >/dev/null; then echo "$name missing"
    elif "$@" >/dev/null 2>&1; then echo "$name ok"; else echo "$name held"; fi
}
try mount mount -t tmpfs none /mnt
try bind mount --bind /etc /mnt
try guest sh -c "echo x > $PLACE/guest"
try channel touch $PLACE/channel/planted
try disk sh -c "mknod $DEVICES/sda $DISK && head -c 1 $DEVICES/sda"
try device mknod $NODES/null c 1 3
# PTRACE_SEIZE does not stop process 1.
try trace python3 -c 'import ctypes,sys; sys.exit(ctypes.CDLL(None).ptrace(0x4206, 1, 0, 0) != 0)'
try memory sh -c 'cat /proc/1/mem || cat /proc/1/environ || cat /proc/1/maps'
try descriptors sh -c 'for one in /proc/1/fd/*; do readlink $one && exit 0; cat < $one && exit 0; done; exit 1'
try root ls /proc/1/root/
try unshare unshare --user --map-root-user true
try chroot chroot / true
try hostname python3 -c 'import socket; socket.sethostname("evil")'
# The same value, and the key that only prints help: a success changes nothing.
try kernel sh -c "echo \$(cat $KERNEL/sys/kernel/panic) > $KERNEL/sys/kernel/panic || echo h > $KERNEL/sysrq-trigger"
try raw python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'
try outside python3 -c 'import urllib.request as r; r.build_opener(r.ProxyHandler({})).open("http://169.254.169.254/", timeout=5)'
try proxied python3 -c 'import urllib.request as r; r.urlopen("http://169.254.169.254/", timeout=5)'
try file dd if=/dev/zero of=$FILE bs=1M count=$MEBIBYTES
[ -z "$ONLY" ] || exit 0
rm -f $FILE
kill -STOP 1 2>/dev/null; kill -KILL 1 2>/dev/null
exit 0
