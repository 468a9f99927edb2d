#!/bin/bash
# Repeats attempts 3 to 8 after the fixes of F1, F4 and F5, on a machine with cgroup version 2 and no systemd:
#   V2_PACKAGES=podman,crun,uidmap,slirp4netns,fuse-overlayfs,curl,ca-certificates V2_DEADLINE=1700 \
#     scripts/v2.sh --script attacks/reviews/podman-rootless/v2_again.sh attacks/reviews/podman-rootless/v2_{lib.sh,cache.py} bellglass bb.tar
# bb.tar is a `docker save` archive of a small image with a static busybox.
mkdir -p /p /job; cp /payload/*.* /job/; cp /payload/bellglass /p/; . /job/v2_lib.sh
useradd -m -u 1001 alice && echo alice:100000:65536 | tee /etc/subuid >/etc/subgid
chmod 755 /job /p /job/* /p/* && chmod u+s /usr/bin/newuidmap /usr/bin/newgidmap && mkdir -p /run/user && chmod 755 /run /run/user
export TMPDIR=/var/lib/bellglass && chmod 1777 /var/lib/bellglass
mkdir -p /home/alice/.config && mount --bind /var/lib/bellglass /home/alice && chown alice /home/alice
ln -sf /proc/mounts /etc/mtab
mkdir -p /sys/fs/cgroup/{sess,root,alice} && echo '+memory +pids +cpu' >/sys/fs/cgroup/alice/cgroup.subtree_control
mkdir /sys/fs/cgroup/alice/s && chown -R alice /sys/fs/cgroup/alice
LOOK='id; for f in memory.max pids.max cpu.max; do echo "$f $(cat /sys/fs/cgroup/$f)"; done
  if dd if=/dev/zero of=/dev/null bs=300M count=1 2>/dev/null; then echo "USED 300 MiB of 128 MiB"; else echo "300 MiB refused: $?"; fi
  i=0; while [ $i -lt 40 ]; do sleep 8 & i=$((i+1)); done; echo "processes: $(ls -d /proc/[0-9]* | wc -l)"'
# attempt NAME USER CGROUP RUNTIME
attempt() {
    local name=$1 user=$2 group=$3 runtime=$4 id dir
    id=$(id -u "$user") dir=/run/user/$id/$name
    echo "### $name: user $user, cgroup $group, $runtime"
    mkdir -p "$dir" && chown -R "$user" "/run/user/$id"
    ( echo "$BASHPID" >"/sys/fs/cgroup/$group/cgroup.procs"; as "$user" prlimit --core=0:0 podman --runtime "$runtime" --cgroup-manager cgroupfs \
        system service --time=0 "unix://$dir/real.sock" >"/tmp/$name.log" 2>&1 ) & local service=$!
    for _ in $(seq 200); do [ -S "$dir/real.sock" ] && break; sleep .5; done
    as "$user" python3 /job/v2_cache.py "$dir/real.sock" "$dir/podman.sock" >"/tmp/$name.cache" 2>&1 & local cache=$!
    for _ in $(seq 400); do grep -q ready "/tmp/$name.cache" && break; sleep .5; done
    local bell=(as "$user" env CONTAINER_HOST="unix://$dir/podman.sock" /p/bellglass --data "/home/alice/$name" --backends podman)
    mkdir -p "/home/alice/$name" && chown "$user" "/home/alice/$name"
    "${bell[@]}" status | grep -E '^podman' | head -n 3
    "${bell[@]}" template import --name small /job/bb.tar 2>&1 | tail -n 3
    [ "$user" != root ] || "${bell[@]}" build-sandbox small 2>&1 | tail -n 3
    "${bell[@]}" run --template small --memory 128M --disk 64M --pids 20 --cpus 0.5 -- sh -c "$LOOK"
    echo "exit code $?"
    tail -n 3 "/tmp/$name.log" | cut -c1-300
    kill $cache $service 2>/dev/null
    pkill -u "$user" podman; pkill -u "$user" conmon
}
attempt rootful root root crun
attempt delegated alice alice/s runc
attempt delegated-crun alice alice/s crun
attempt undelegated-crun alice sess crun
exit 0
