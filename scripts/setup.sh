#!/usr/bin/env bash
# What a fresh Debian 12 or 13 needs to build Belljar and to run all its tests. Run again, it changes nothing.
#
#   scripts/setup.sh [STEP...]      steps: packages just rust deny (all of them if none is named)
set -euo pipefail
cd "$(dirname "$0")/.."
export DEBIAN_FRONTEND=noninteractive
export PATH="$HOME/.cargo/bin:$HOME/.local/bin:$PATH"

# To build: a C compiler for crates that link C, libseccomp for youki. To isolate: runc, runsc. To make templates:
# mmdebstrap. Disks: e2fsprogs, mount, util-linux. Tests: bubblewrap (the figures compare with it), skopeo and umoci
# (they make and push the images that `belljar template` reads), docker-registry, zstd, iproute2 and procps (to look for leftovers). Attacks on
# the service: faketime, openssl, chromium (a page in a sandbox is a page in a browser), and python3-venv, into which the fuzzer of attacks/H-09 is installed from PyPI. Guides: sqlite3 and jq, which they use.
# Terminals: tmux, a terminal emulator that tests can ask what it shows. Engines: docker.io, podman.
PACKAGES=(
    ca-certificates curl git gcc libc6-dev pkg-config libseccomp-dev
    runc
    mmdebstrap e2fsprogs mount util-linux
    bubblewrap skopeo umoci zstd iproute2 procps python3 python3-pip python3-venv
    faketime openssl sqlite3 jq chromium tmux docker-registry docker.io podman
)
# Debian 12's own runsc is of 2022 and cannot list a directory on new kernels; backports and Debian 13 have this one.
readonly RUNSC_LEAST='0.0~20240729'
readonly BACKPORTS=/etc/apt/sources.list.d/belljar-backports.sources
# deny.toml is written for this one.
readonly DENY='^0.20'

say() { printf '%-9s %s\n' "$1" "$2"; }

as_root() { if [[ $(id -u) == 0 ]]; then "$@"; else sudo --preserve-env=DEBIAN_FRONTEND "$@"; fi; }

# Shows what a command said only if it failed.
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

# Where an executable goes that no package has: cargo finds its subcommands there, and rustup put it in PATH.
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

step_deny() {
    if cargo deny --version >/dev/null 2>&1; then
        say deny "present ($(cargo deny --version))"
        return
    fi
    # No package of Debian has it, and PyPI's is three years old. Without optimisation it is built in a third of the
    # time (2 minutes of processor time instead of 6) and is still done with our graph in a second.
    quiet env CARGO_PROFILE_DEV_DEBUG=0 cargo install --debug --locked --version "$DENY" cargo-deny
    say deny 'built from crates.io'
}

steps=("$@")
((${#steps[@]})) || steps=(packages just rust deny)
for step in "${steps[@]}"; do
    "step_$step"
done
