# Run as root on a machine with cgroup version 2 (no systemd), users alice (1001) with subuid, podman, crun, runc; v2_lib.sh, v2_answers.py (as cache.py), a small image (bb.tar) in /job.
. /job/lib.sh; mkdir /sys/fs/cgroup/sess; mkdir -p /run/user/1001/podman; cp /job/*.* /tmp/; chmod 755 /tmp/*; chown -R alice /run/user/1001; export BJENV=SSL_CERT_FILE=/tmp/ca.crt
( echo $BASHPID >/sys/fs/cgroup/sess/cgroup.procs; as alice prlimit --core=0:0 podman system service --time=0 unix:///run/user/1001/podman/real.sock >/tmp/podman.log 2>&1 ) &
for k in $(seq 200); do [ -S /run/user/1001/podman/real.sock ] && break; sleep .5; done
as alice python3 /tmp/cache.py /run/user/1001/podman/real.sock /run/user/1001/podman/podman.sock >/tmp/cache.log 2>&1 &
for k in $(seq 400); do grep -q ready /tmp/cache.log && break; sleep .5; done; cat /tmp/cache.log; cp /p/bellglass /tmp/bj
echo "## status"; as alice /tmp/bj --backends podman status | grep -vE "^  "
echo "## import"; as alice /tmp/bj --backends podman template import --name base /tmp/bb.tar 2>&1 | tail -n 4
for k in 1 2; do echo "## run $k"; as alice /tmp/bj --backends podman run --memory 128M --disk 64M --pids 20 --cpus 0.5 -- sh -c 'id; for f in memory.max pids.max cpu.max; do echo "$f $(cat /sys/fs/cgroup/$f)"; done; dd if=/dev/zero of=/dev/null bs=300M count=1 && echo "USED 300 MiB of 128 MiB"; i=0; while [ $i -lt 40 ]; do sleep 8 & i=$((i+1)); done; echo "processes: $(ls -d /proc/[0-9]* | wc -l)"' && break; done; echo rc=$?
tail -n 4 /tmp/podman.log
