# as USER cmd…: with a clean environment
as() { local u=$1; shift; local i=$(id -u $u); mkdir -p /run/user/$i; chown $u /run/user/$i; chmod 700 /run/user/$i; setpriv --reuid $i --regid $i --clear-groups env -i HOME=/home/$u USER=$u LOGNAME=$u XDG_RUNTIME_DIR=/run/user/$i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin ${BJENV:-} "$@"; }
# in cgroup NAME: run the rest with the shell's child in this cgroup
incg() { local g=$1; shift; ( echo $BASHPID >/sys/fs/cgroup/$g/cgroup.procs; "$@" ); }
bj() { local u=$1; shift; as $u /p/bellglass --backends podman "$@"; }
serve_podman() { local u=$1 g=$2; local i=$(id -u $u); mkdir -p /run/user/$i/podman; chown -R $u /run/user/$i; ( echo $BASHPID >/sys/fs/cgroup/$g/cgroup.procs; as $u podman system service --time=0 unix:///run/user/$i/podman/podman.sock >/tmp/podman-$u.log 2>&1 ) & for k in $(seq 50); do [ -S /run/user/$i/podman/podman.sock ] && break; sleep .2; done; }
