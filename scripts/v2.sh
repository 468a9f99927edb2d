#!/usr/bin/env bash
# Runs tests on a kernel with cgroup v2, independent of the host's kernel. In QEMU, the script boots Debian's kernel with a
# generated root file system, runs /payload/run.sh as root, shows its output and exits with its exit code.
#
#   scripts/v2.sh [--quick | --list FILE]
#   scripts/v2.sh [--systemd] --script FILE [FILE...]
#
# With `--script`, the machine runs the first file instead of tests. It and the other files are in /payload.
# With `--systemd`, systemd boots the machine and starts the script as a service. If the script exits with 99, the machine reboots and
# the script runs again. The root file system and /var/lib/bellglass keep their content across the reboot.
# V2_PACKAGES adds Debian packages to the machine, separated by commas.
#
# The script builds the tests of the workspace that FILE lists, with one "test-target [filter]..." per line. Without FILE,
# the tests are those in `default_tests` below, or with `--quick` those in `quick_tests`. A test target that runs no test is a failure.
#
# V2_DEADLINE limits the run time of the virtual machine, in seconds. V2_SUITE is the Debian release in the machine.
# V2_ACCEL=kvm enables KVM on hosts that support it. Without KVM, the processor is emulated, and all time limits of the tests are ten
# times as long. The script needs root to create files with the correct owners.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

default_tests=$'real laws:: limits:: pause::\nattacks sandbox::exhaustion:: sandbox::tables::a_table_that_one_sandbox_uses_up'
quick_tests='real laws::runc_keeps_all_laws limits::too_much_memory limits::a_process_bomb limits::processor_time'
deadline=${V2_DEADLINE:-3600}
# The tests are linked with this host's C library, so on a Debian host the virtual machine has the same Debian release.
# shellcheck source=/dev/null
suite=${V2_SUITE:-$(. /etc/os-release && if [[ $ID == debian ]]; then echo "$VERSION_CODENAME"; else echo bookworm; fi)}
guest_packages=runc,e2fsprogs,iproute2,python3,procps,util-linux,kmod,curl,openssl,ca-certificates${V2_PACKAGES:+,$V2_PACKAGES}

list=
systemd=no
script=()
while (($#)); do
    case $1 in
    --quick) default_tests=$quick_tests && shift ;;
    --list) list=${2:?--list needs a file} && shift 2 ;;
    --systemd) systemd=yes && shift ;;
    --script) : "${2:?--script needs a file}" && script=("${@:2}") && shift $# ;;
    *) echo "usage: $0 [--quick | --list FILE | [--systemd] --script FILE [FILE...]]" >&2 && exit 2 ;;
    esac
done
[[ $systemd == no ]] || guest_packages+=,systemd,systemd-sysv,dbus,udev

cache=$(realpath -m "${CARGO_TARGET_DIR:-target}")/v2
mkdir -p "$cache"
work=$(mktemp -d "$cache/run.XXXXXX")
qemu=
trap '[[ -z $qemu ]] || kill "$qemu" 2>/dev/null || true; rm -rf "$work"' EXIT

# The first process of the virtual machine. It is not systemd, because without systemd the machine boots in seconds, even under
# emulation.
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
# The mount options that systemd uses: they change the permissions of delegated groups.
mount -t cgroup2 -o nosuid,nodev,noexec,nsdelegate,memory_recursiveprot cgroup2 /sys/fs/cgroup
# Shared mounts, as on a systemd host, so that tests notice a mount that is not made private.
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
mkdir -p /payload /var/lib/bellglass
mount -o ro LABEL=payload /payload
mount LABEL=scratch /var/lib/bellglass
read -r booted _ </proc/uptime
echo "V2-BOOT $booted s, $(uname -r)"
cd /var/lib/bellglass
result=0
/payload/run.sh || result=$?
read -r ended _ </proc/uptime
echo "V2-RUN $(echo "$ended $booted" | awk '{ print $1 - $2 }') s"
INIT

# The service that runs the script on a machine booted by systemd. The disks are found by their labels.
read -r -d '' service <<'SERVICE' || true
[Unit]
Description=The script under test
After=multi-user.target

[Service]
Type=oneshot
ExecStart=/run-payload
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console

[Install]
WantedBy=multi-user.target
SERVICE
read -r -d '' run_payload <<'RUN' || true
#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
stty -onlcr </dev/console
read -r booted _ </proc/uptime
echo "V2-BOOT $booted s, $(uname -r), $(systemctl --version | head -n 1)"
result=0
/payload/run.sh || result=$?
dmesg --console-off
sync
if [ "$result" = 99 ]; then
    echo V2-REBOOT
    exec systemctl --no-block reboot
fi
echo "V2-RESULT $result"
systemctl --no-block poweroff
RUN

# mmdebstrap runs this hook on the new tree. The hook downloads the kernel with the apt configuration of the tree, so the
# host can be any distribution. It unpacks the kernel package instead of installing it, because the installation would
# build an initramfs, which is not needed. The cloud kernel has built-in drivers for NVMe and ext4, but virtio is a
# module, so the disks below are NVMe disks.
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
if [ -e service ]; then
    install -m 644 service "$root/etc/systemd/system/payload.service"
    install -m 755 run-payload "$root/run-payload"
    printf 'LABEL=%s\n' 'payload /payload ext4 ro' 'scratch /var/lib/bellglass ext4 rw' >"$root/etc/fstab"
    mkdir -p "$root/payload" "$root/var/lib/bellglass"
    chroot "$root" systemctl enable payload.service
    chroot "$root" systemctl mask getty.target serial-getty@ttyS0.service
    # A machine on which nothing is logged in must not wait for a first-boot dialog.
    echo uninitialized >"$root/etc/machine-id"
fi
HOOK

install_tools() {
    local tool missing=
    for tool in qemu-system-x86_64 mmdebstrap mke2fs jq; do command -v "$tool" >/dev/null || missing=1; done
    [[ -n $missing ]] || return 0
    local packages=(qemu-system-x86 mmdebstrap debian-archive-keyring e2fsprogs jq)
    local get=(apt-get install -qq -y --no-install-recommends)
    apt-get update -qq
    # On a host that has parts of QEMU from backports, apt refuses the other parts from stable.
    "${get[@]}" "${packages[@]}" ||
        "${get[@]}" -t "$suite-backports" "${packages[@]}"
}

# make_disk LABEL FILE SIZE [OPTION...]
make_disk() {
    truncate -s "$3" "$2" # mke2fs announces a file it has to create, even with -q.
    nice mke2fs -q -t ext4 -L "$1" "${@:4}" "$2"
}

# Creates the directory $guest with the root image and the kernel, unless the directory exists. Its name contains a hash of
# everything from which it is built.
make_guest() {
    guest=$cache/guest-$(printf '%s\n' "$suite" "$guest_packages" "$init" "$hook" "$systemd$service$run_payload" | sha256sum | cut -c1-16)
    [[ ! -e $guest ]] || return 0
    local out=$work/guest
    mkdir "$out"
    printf '%s\n' "$init" >"$out/init"
    printf '%s\n' "$hook" >"$out/hook"
    if [[ $systemd == yes ]]; then
        printf '%s\n' "$service" >"$out/service"
        printf '%s\n' "$run_payload" >"$out/run-payload"
    fi
    V2_OUT=$out nice mmdebstrap --quiet --variant=minbase --include="$guest_packages" \
        --customize-hook="sh '$out/hook' \"\$1\"" "$suite" "$out/tree"
    make_disk root "$out/root.ext4" 1G -d "$out/tree"
    rm -rf "$out/tree"
    mv -T "$out" "$guest" 2>/dev/null || [[ -e $guest ]] # Another run may have been faster.
}

# Builds the listed tests, and writes a run.sh that runs all of these tests and fails if any test fails.
make_payload() {
    payload=$work/payload
    mkdir "$payload"
    local target filter executable
    local -a targets=()
    while read -r target filter; do
        [[ -n $target ]] || continue
        targets+=(--test "$target")
        [[ -z $filter ]] || echo "$filter" >"$payload/$target.filter"
    done <"$work/list"
    # Some tests start a server. The profile and the features are those of `just real`, so one build serves both.
    cargo test --no-run --workspace --profile tried --locked
    install -m 644 "${CARGO_TARGET_DIR:-target}/tried/bellglass" "$payload/bellglass.program"
    # The attack tests read their payloads from the path where the tests were built.
    cp -r attacks "$payload/attacks.files"
    case ${V2_ACCEL:-tcg} in kvm*) echo 1 ;; *) echo 10 ;; esac >"$payload/slowdown"
    pwd >"$payload/place"
    # Same profile and features as `just real`, so that one build serves both.
    cargo test --no-run --workspace --profile tried --locked "${targets[@]}" --message-format=json |
        jq -r 'select(.reason == "compiler-artifact" and .executable and .profile.test) | .target.name, .executable' |
        while read -r target && read -r executable; do
            install -m 755 "$executable" "$payload/$target"
        done
    cat >"$payload/run.sh" <<'RUN'
#!/bin/bash
# Creates a template layer for the tests. It is the guest's own root file system without its mounts, which is a plain Debian with Python,
# plus the directories that a template import creates.
mkdir /run/layer && mount --bind --make-private / /run/layer
mkdir -p /workspace /home/sandbox /.bellglass/channel /.bellglass/spool && : >/.bellglass/guest
echo 'sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh' >>/etc/passwd
echo 'sandbox:x:1000:' >>/etc/group
export BELLGLASS_TEST_LAYER=/run/layer BELLGLASS_RUNTIMES=runc TMPDIR=/var/lib/bellglass BELLGLASS_BINARY=/run/bellglass
install -m 755 /payload/bellglass.program /run/bellglass
BELLGLASS_SLOWDOWN=$(cat /payload/slowdown) && export BELLGLASS_SLOWDOWN
chmod 711 /var/lib/bellglass
# A machine of this size has room for the open files of 280 processes; a test starts a sandbox with 1,024.
echo 2000000 >/proc/sys/fs/file-max
place=$(cat /payload/place)
mkdir -p "$place/crates/e2e" && cp -r /payload/attacks.files "$place/attacks"
failed=0 ran=0
for test in /payload/*; do
    [ "$test" = /payload/run.sh ] || [ ! -f "$test" ] || [ ! -x "$test" ] && continue
    filter=$(cat "$test.filter" 2>/dev/null)
    set -o pipefail
    # Each filter runs on its own, because each must select a test that passes. Skipped: tests of runtimes that are not on this machine,
    # and two dozen sandboxes at once, which take minutes on an emulated processor and do not test cgroups.
    for word in ${filter:-all}; do
        echo "== ${test##*/} $word"
        ran=$((ran + 1))
        "$test" --include-ignored --test-threads=1 --nocapture --skip side_by_side --skip runsc --skip docker --skip podman \
            --skip daytona --skip youki "${word#all}" | tee /tmp/said || failed=1
        grep -q '^test result: ok\. [1-9]' /tmp/said || { echo "${test##*/}: no test of $word passed" && failed=1; }
    done
done
[ $ran -gt 0 ] || { echo 'there is no test' && failed=1; }
exit $failed
RUN
    chmod 755 "$payload/run.sh"
}

install_tools
make_guest
if [[ -n $list ]]; then cp "$list" "$work/list"; else echo "$default_tests" >"$work/list"; fi
if ((${#script[@]})); then
    payload=$work/payload
    mkdir "$payload"
    cp "${script[@]}" "$payload/"
    install -m 755 "${script[0]}" "$payload/run.sh"
else
    make_payload
fi

megabytes=$(($(du -sm --apparent-size "$payload" | cut -f1) * 5 / 4 + 64))
make_disk payload "$work/payload.ext4" "${megabytes}M" -i 4096 -d "$payload"
make_disk scratch "$work/scratch.ext4" 6G

boot='init=/init panic=-1'
reboot=-no-reboot
# On a machine with systemd, a reboot is a part of the test, and a kernel panic stops the machine until the deadline.
if [[ $systemd == yes ]]; then
    boot='init=/sbin/init systemd.show_status=no systemd.firstboot=no'
    reboot=
fi

# The three disks are namespaces of one NVMe controller, so that their device names are fixed. The kernel would name three controllers in
# the order in which they respond. The root disk is a snapshot, so the cached image stays unchanged. cache=unsafe is sufficient, because
# no data is needed after the run.
: >"$work/console" # Must exist before tail starts.
timeout -k 10 "$deadline" nice qemu-system-x86_64 \
    -machine q35 -accel "${V2_ACCEL:-tcg,thread=multi}" -cpu max -smp 2 -m 3G \
    -nodefaults -no-user-config -display none ${reboot:+"$reboot"} -serial stdio \
    -kernel "$guest/vmlinuz" \
    -append 'console=ttyS0 quiet root=/dev/nvme0n1 rootwait rw '"$boot"' cgroup_no_v1=all mitigations=off' \
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
