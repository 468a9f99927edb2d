#!/usr/bin/env bash
# Tests the first minute of a new user: executes the commands of the README literally on a fresh Debian. Needs root.
#
#   scripts/first-minute.sh [--built FILE] [bookworm|trixie]
#
# The fresh Debian is a root file system built by mmdebstrap (minbase). The script enters it by pivot_root in separate
# mount and process namespaces, on this machine's kernel. When the script ends, all mounts and processes in these
# namespaces end too. The executed commands are the ```sh blocks of README.md between `<!-- first-minute -->` and
# `<!-- /first-minute -->`. Each block runs in its own `bash -e`, in a checkout of HEAD. The last line that the last
# block prints must be `1`.
#
# Rustup's toolchains and cargo's registry are shared with this machine through temporary overlays. The README requires
# rustup, and the test should not download toolchains or crates each time. The fresh Debian also gets this machine's
# proxy settings for apt and its additional certificates.
#
# With --built, the script installs this executable instead of executing the block that compiles it.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly MIRROR=http://deb.debian.org/debian
readonly CACHE=target/first-minute
# Maximum age of the cached root file system.
readonly CACHE_DAYS=7

built='' suite=bookworm
while (($#)); do
    case $1 in
    --built) built=$(realpath "${2:?--built needs a file}") && shift 2 ;;
    bookworm | trixie) suite=$1 && shift ;;
    *)
        echo "first-minute: unknown argument $1" >&2
        exit 2
        ;;
    esac
done
if [[ $(id -u) != 0 ]]; then
    exec sudo --preserve-env=PATH,HOME "$0" ${built:+--built "$built"} "$suite"
fi

note() { printf -- '-- %s (%d s)\n' "$1" "$SECONDS"; }

# Writes the marked blocks of a README to the files 1, 2, … in a directory.
extract() { # README, directory
    awk -v dir="$2" '
        /^<!-- first-minute -->$/  { marked = 1 }
        /^<!-- \/first-minute -->$/ { marked = 0 }
        /^```/ && inside            { inside = 0; close(file); next }
        /^```sh$/ && marked         { inside = 1; file = dir "/" ++count; next }
        inside                      { print > file }' "$1"
    [[ -e $2/1 ]] || { echo 'first-minute: README.md has no block between its markers' >&2; exit 1; }
}

fresh_debian() { # archive
    [[ -n $(find "$1" -mtime "-$CACHE_DAYS" 2>/dev/null) ]] && return
    mkdir -p "$(dirname "$1")"
    mmdebstrap --quiet --format=tar --variant=minbase "$suite" "$1.new" "$MIRROR"
    mv "$1.new" "$1"
}

# Copies this machine's network settings into the root: name resolution, proxies and certificates.
lend_network() { # root
    cat /etc/resolv.conf >"$1/etc/resolv.conf"
    cat /etc/hosts >"$1/etc/hosts"
    apt-config dump | grep -E '^Acquire::(https?::Proxy|Check-Valid-Until)' >"$1/etc/apt/apt.conf.d/99lent" || true
    if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then
        mkdir -p "$1/usr/local/share/ca-certificates"
        cp /usr/local/share/ca-certificates/*.crt "$1/usr/local/share/ca-certificates/"
    fi
}

# Runs in the new namespaces: adds the mounts to the tree and makes the tree the root file system.
enter() { # root, scratch, home
    local root=$1 scratch=$2 home=$3 inside_home=/root name
    mount --make-rprivate /
    mount --bind "$root" "$root"
    for name in dev sys; do
        mount --rbind "/$name" "$root/$name"
    done
    mount -t proc proc "$root/proc"
    for name in .rustup .cargo/bin .cargo/registry; do
        [[ -d $home/$name ]] || continue
        mkdir -p "$root$inside_home/$name" "$scratch/$name/upper" "$scratch/$name/work"
        mount -t overlay overlay "$root$inside_home/$name" \
            -o "lowerdir=$home/$name,upperdir=$scratch/$name/upper,workdir=$scratch/$name/work"
    done
    mkdir "$root/.old"
    cd "$root"
    pivot_root . .old
    cd /root/bellglass
    umount -l /.old
    rmdir /.old
    exec env -i HOME="$inside_home" TERM=dumb LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        PATH="$inside_home/.cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
        ${http_proxy:+http_proxy=$http_proxy} ${https_proxy:+https_proxy=$https_proxy} \
        bash /root/first-minute/inside
}

# Prints the script that runs in the fresh Debian and executes the blocks in order.
inside() {
    cat <<'INSIDE'
set -euo pipefail
replaced=no
last=$(find /root/first-minute -name '[0-9]*' -printf '%f\n' | sort -n | tail -1)
for number in $(seq "$last"); do
    block=/root/first-minute/$number
    from=$SECONDS
    sed 's/^/$ /' "$block"
    if [[ -e /root/first-minute/bellglass ]] && grep -q '^cargo build' "$block"; then
        install /root/first-minute/bellglass /usr/local/bin/
        replaced=yes
        echo '-- installed the executable that was built before'
        continue
    fi
    bash -e "$block" </dev/null | tee "$block.out"
    printf -- '-- block %s of %s: %d s\n' "$number" "$last" $((SECONDS - from))
done
if [[ -e /root/first-minute/bellglass && $replaced == no ]]; then
    echo 'first-minute: no block compiles the executable that --built replaces' >&2
    exit 1
fi
said=$(tail -n 1 "/root/first-minute/$last.out")
if [[ $said != 1 ]]; then
    printf 'first-minute: the last command printed %q, not 1\n' "$said" >&2
    exit 1
fi
INSIDE
}

archive=$CACHE/$suite.tar
fresh_debian "$archive"
note "a fresh $suite"

work=$(mktemp -d "$PWD/$CACHE/run.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
mkdir "$work/root" "$work/scratch"
tar -xpf "$archive" -C "$work/root" --numeric-owner
mkdir -p "$work/root/root/bellglass" "$work/root/root/first-minute"
git archive HEAD | tar -xf - -C "$work/root/root/bellglass"
extract "$work/root/root/bellglass/README.md" "$work/root/root/first-minute"
inside >"$work/root/root/first-minute/inside"
[[ -z $built ]] || install -m 755 "$built" "$work/root/root/first-minute/bellglass"
lend_network "$work/root"
note 'the checkout is inside'

export -f enter
unshare --mount --pid --fork --kill-child bash -euo pipefail -c 'enter "$@"' enter "$work/root" "$work/scratch" "$HOME"
note 'the first minute'
