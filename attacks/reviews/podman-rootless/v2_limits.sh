# Run as root on a machine with cgroup version 2 (no systemd), user alice (1001) with subuid, podman, crun, runc; v2_lib.sh as /job/lib.sh.
. /job/lib.sh; mkdir -p /rfs; mount --bind / /rfs
ln -sf /proc/mounts /etc/mtab; touch /etc/hosts /etc/resolv.conf /etc/hostname; mkdir -p /run /tmp /proc /sys /dev
try() { local g=$1 rt=$2; echo "--- cgroup $g, runtime $rt"; cat > /tmp/in.sh <<'S'
cat /proc/self/cgroup; for f in memory.max pids.max cpu.max; do echo "$f $(cat /sys/fs/cgroup/$f 2>&1)"; done
python3 -c '
b=bytearray(300<<20)
for i in range(0,len(b),4096): b[i]=1
print("TOUCHED 300 MiB under a limit of 128 MiB")'; echo "python rc=$?"
python3 -c '
import os,time
n=0
try:
    for i in range(60):
        if os.fork()==0: time.sleep(20); os._exit(0)
        n+=1
except OSError as e: print(e)
print("PROCESSES", n, "under a limit of 20")'
S
chmod 755 /tmp/in.sh; ( echo $BASHPID >/sys/fs/cgroup/$g/cgroup.procs; as alice timeout 200 podman --runtime $rt --cgroup-manager cgroupfs run --name t-$rt --memory 128m --memory-swap 128m --pids-limit 20 --cpus 0.5 --network none --read-only -v /tmp/in.sh:/tmp/in.sh --rootfs /rfs sh /tmp/in.sh; echo "podman rc=$?"; as alice podman inspect t-$rt --format 'inspect: Memory={{.HostConfig.Memory}} Pids={{.HostConfig.PidsLimit}} NanoCpus={{.HostConfig.NanoCpus}} CgroupParent={{.HostConfig.CgroupParent}} Cgroups={{.HostConfig.Cgroups}}'; as alice podman rm -f t-$rt >/dev/null ); }
mkdir /sys/fs/cgroup/sess; ( echo $BASHPID >/sys/fs/cgroup/sess/cgroup.procs; as alice podman info --format 'info: controllers={{.Host.CgroupControllers}} version={{.Host.CgroupsVersion}} manager={{.Host.CgroupManager}} rootless={{.Host.Security.Rootless}} runtime={{.Host.OCIRuntime.Name}} driver={{.Store.GraphDriverName}}' )
echo "### session cgroup that has the controllers and belongs to root"; try sess crun; try sess runc
echo "### delegated"; mkdir -p /sys/fs/cgroup/alice; echo '+memory +pids +cpu' > /sys/fs/cgroup/alice/cgroup.subtree_control; mkdir /sys/fs/cgroup/alice/s; chown -R alice /sys/fs/cgroup/alice; try alice/s crun; try alice/s runc
