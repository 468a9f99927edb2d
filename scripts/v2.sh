#!/usr/bin/env bash
# Runs tests on a real cgroup v2 kernel, whatever this host has: boots Debian's kernel in QEMU on a root file system of
# ours, runs /payload/run.sh there as root, shows its output and ends with its exit code.
#
#   scripts/v2.sh [--list FILE]
#
# The payload is target/v2/payload (executables and a run.sh) where somebody has prepared one. Otherwise it is built
# here from the workspace's tests: one "package test-target" a line in FILE, or those of `default_tests` below.
# V2_DEADLINE (seconds) bounds the life of the machine, V2_SUITE is the guest's Debian, V2_ACCEL=kvm is for a host that
# has it. Needs root, to make a tree with its owners right.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

default_tests=$'e2e real_laws\ne2e real_limits'
deadline=${V2_DEADLINE:-1800}
# The tests are linked with this host's C library, so where it is a Debian the guest is the same one.
# shellcheck source=/dev/null
suite=${V2_SUITE:-$(. /etc/os-release && if [[ $ID == debian ]]; then echo "$VERSION_CODENAME"; else echo bookworm; fi)}
guest_packages=runc,e2fsprogs,iproute2,python3,procps,util-linux,kmod

list=
while (($#)); do
    case $1 in
    --list) list=${2:?--list needs a file} && shift 2 ;;
    *) echo "usage: $0 [--list FILE]" >&2 && exit 2 ;;
    esac
done

cache=$(realpath -m "${CARGO_TARGET_DIR:-target}")/v2
mkdir -p "$cache"
work=$(mktemp -d "$cache/run.XXXXXX")
qemu=
trap '[[ -z $qemu ]] || kill "$qemu" 2>/dev/null || true; rm -rf "$work"' EXIT

# The guest's first process. Not systemd: a boot without it takes seconds, which emulated is the difference that counts.
read -r -d '' init <<'INIT' || true
#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
mount -t devtmpfs -o nosuid dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o nosuid,noexec,gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o nosuid,nodev shm /dev/shm
mount -t tmpfs -o nosuid,nodev,mode=755 run /run
mount -t tmpfs -o nosuid,nodev tmp /tmp
# The options systemd mounts it with, for they change what a delegated group may do.
mount -t cgroup2 -o nosuid,nodev,noexec,nsdelegate,memory_recursiveprot cgroup2 /sys/fs/cgroup
# As on a systemd host, where forgetting to make a mount private is seen.
mount --make-rshared /
exec </dev/console >/dev/console 2>&1
stty -onlcr # So that lines end as they do anywhere else.
result=125
finish() {
    dmesg --console-off # A kernel message inside the marker would hide it.
    echo "V2-RESULT $result"
    sync
    echo o >/proc/sysrq-trigger
    sleep 60
}
trap finish EXIT
set -e
ip link set lo up
hostname v2
modprobe -a loop overlay # /dev/loop-control is there only once loop is.
echo '+memory +pids +cpu' >/sys/fs/cgroup/cgroup.subtree_control
mkdir -p /payload /var/lib/belljar
mount -o ro LABEL=payload /payload
mount LABEL=scratch /var/lib/belljar
read -r booted _ </proc/uptime
echo "V2-BOOT $booted s, $(uname -r)"
cd /var/lib/belljar
result=0
/payload/run.sh || result=$?
read -r ended _ </proc/uptime
echo "V2-RUN $(echo "$ended $booted" | awk '{ print $1 - $2 }') s"
INIT

# mmdebstrap runs this on the new tree. The kernel comes from the tree's own apt, so that the host may be any
# distribution, and is unpacked, not installed: installing would build an initramfs, and none is needed. The cloud
# kernel has NVMe and ext4 built in (virtio is a module), hence the NVMe disks below.
read -r -d '' hook <<'HOOK' || true
set -eu
root=$1
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
cd "$V2_OUT"
image=$(apt-cache depends linux-image-cloud-amd64 | awk '$1 == "Depends:" { print $2; exit }')
apt-get download -qq -o APT::Sandbox::User=root "$image"
dpkg-deb -x linux-image-*.deb kernel
rm linux-image-*.deb
for option in BLK_DEV_NVME EXT4_FS USER_NS MEMCG CGROUP_PIDS CFS_BANDWIDTH SECCOMP_FILTER; do
    grep -q "^CONFIG_$option=y" kernel/boot/config-* || { echo "the kernel lacks $option" >&2 && exit 1; }
done
mkdir -p "$root/usr/lib/modules"
for modules in kernel/lib/modules/* kernel/usr/lib/modules/*; do # Debian 12 has them in the first, 13 in the second.
    [ ! -d "$modules" ] || mv "$modules" "$root/usr/lib/modules/"
done
mv kernel/boot/vmlinuz-* vmlinuz
rm -r kernel
chroot "$root" depmod "${image#linux-image-}"
install -m 755 init "$root/init"
HOOK

install_tools() {
    local tool missing=
    for tool in qemu-system-x86_64 mmdebstrap mke2fs jq; do command -v "$tool" >/dev/null || missing=1; done
    [[ -n $missing ]] || return 0
    local packages=(qemu-system-x86 mmdebstrap debian-archive-keyring e2fsprogs jq)
    local get=(apt-get install -qq -y --no-install-recommends)
    apt-get update -qq
    # A host with some of QEMU from backports already refuses the rest from stable.
    "${get[@]}" "${packages[@]}" ||
        "${get[@]}" -t "$suite-backports" "${packages[@]}"
}

# make_disk LABEL FILE SIZE [OPTION...]
make_disk() {
    truncate -s "$3" "$2" # mke2fs announces a file it has to create, even when told to be quiet.
    nice mke2fs -q -t ext4 -L "$1" "${@:4}" "$2"
}

# Leaves the root image and the kernel in $guest, named after what they are made of.
make_guest() {
    guest=$cache/guest-$(printf '%s\n' "$suite" "$guest_packages" "$init" "$hook" | sha256sum | cut -c1-16)
    [[ ! -e $guest ]] || return 0
    local out=$work/guest
    mkdir "$out"
    printf '%s\n' "$init" >"$out/init"
    printf '%s\n' "$hook" >"$out/hook"
    V2_OUT=$out nice mmdebstrap --quiet --variant=minbase --include="$guest_packages" \
        --customize-hook="sh '$out/hook' \"\$1\"" "$suite" "$out/tree"
    make_disk root "$out/root.ext4" 1G -d "$out/tree"
    rm -rf "$out/tree"
    mv -T "$out" "$guest" 2>/dev/null || [[ -e $guest ]] # Another run may have been first.
}

# Builds the tests of the list and a run.sh that runs them all, and fails if any failed.
make_payload() {
    payload=$work/payload
    mkdir "$payload"
    local package target executable
    local -a packages=()
    while read -r package target; do
        [[ -n $target ]] || continue
        packages+=(-p "$package" --test "$target")
    done <"$work/list"
    # Built as `just real` builds them, so that one build serves both.
    cargo test --no-run --release --locked "${packages[@]}" --message-format=json |
        jq -r 'select(.reason == "compiler-artifact" and .executable and .profile.test) | .target.name, .executable' |
        while read -r target && read -r executable; do
            install -m 755 "$executable" "$payload/$target"
        done
    cat >"$payload/run.sh" <<'RUN'
#!/bin/sh
# A layer for the tests: the guest's own tree, which without what is mounted on it is a plain Debian with Python, and
# with what an import adds.
mkdir /run/layer && mount --bind --make-private / /run/layer
mkdir -p /workspace /home/sandbox /.belljar/channel /.belljar/spool && : >/.belljar/guest
echo 'sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh' >>/etc/passwd
echo 'sandbox:x:1000:' >>/etc/group
export BELLJAR_REAL=1 BELLJAR_TEST_LAYER=/run/layer BELLJAR_RUNTIMES=runc BELLJAR_SLOWDOWN=10 TMPDIR=/var/lib/belljar
chmod 711 /var/lib/belljar
failed=0
for test in /payload/*; do
    [ "$test" = /payload/run.sh ] || [ ! -f "$test" ] && continue
    echo "== ${test##*/}"
    # Two dozen starts at once are minutes of an emulated processor, and say nothing about cgroups.
    "$test" --test-threads=1 --nocapture --skip side_by_side || failed=1
done
exit $failed
RUN
    chmod 755 "$payload/run.sh"
}

install_tools
make_guest
payload=$cache/payload
if [[ -n $list || ! -e $payload/run.sh ]]; then
    if [[ -n $list ]]; then cp "$list" "$work/list"; else echo "$default_tests" >"$work/list"; fi
    make_payload
fi
echo "v2: running $payload/run.sh" >&2 # Since a prepared payload is easily forgotten.

megabytes=$(($(du -sm --apparent-size "$payload" | cut -f1) * 5 / 4 + 64))
make_disk payload "$work/payload.ext4" "${megabytes}M" -i 4096 -d "$payload"
make_disk scratch "$work/scratch.ext4" 6G

# One controller with three namespaces, since three controllers would be named in the order they happen to answer.
# The root is a snapshot, so the cached image stays as it was built. Nothing outlives the run, hence cache=unsafe.
: >"$work/console" # Or tail may look for it first.
timeout -k 10 "$deadline" nice qemu-system-x86_64 \
    -machine q35 -accel "${V2_ACCEL:-tcg,thread=multi}" -cpu max -smp 2 -m 3G \
    -nodefaults -no-user-config -display none -no-reboot -serial stdio \
    -kernel "$guest/vmlinuz" \
    -append 'console=ttyS0 quiet root=/dev/nvme0n1 rootwait rw init=/init panic=-1 cgroup_no_v1=all mitigations=off' \
    -device nvme,id=disks,serial=v2 \
    -drive "if=none,id=root,format=raw,file=$guest/root.ext4,snapshot=on,cache=unsafe" \
    -device nvme-ns,bus=disks,drive=root,nsid=1 \
    -drive "if=none,id=payload,format=raw,file=$work/payload.ext4,cache=unsafe" \
    -device nvme-ns,bus=disks,drive=payload,nsid=2 \
    -drive "if=none,id=scratch,format=raw,file=$work/scratch.ext4,cache=unsafe" \
    -device nvme-ns,bus=disks,drive=scratch,nsid=3 \
    </dev/null >"$work/console" &
qemu=$!
tail -n +1 -s 0.5 -f --pid="$qemu" "$work/console" &
ended=0
wait "$qemu" || ended=$?
wait
qemu=
((ended != 124)) || echo "v2: no result within $deadline s" >&2
result=$(sed -n 's/^V2-RESULT \([0-9]*\)$/\1/p' "$work/console" | tail -n 1)
exit "${result:-$((ended == 0 ? 1 : ended))}"
