# shellcheck shell=bash
# To be sourced: Debian's kernels and a qemu that runs them, in a folder of their own. Nothing of it is
# installed: apt works on private lists, and packages are only unpacked.

KERNELS_CACHE=${KERNELS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vmaudit-kernels}
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
SUITES="bullseye bookworm bookworm-backports trixie trixie-backports sid"
# qemu 7.2, which Debian 12 has itself, double-faults in some boots of 6.12 without KVM.
QEMU_MAJOR=10

# cannot WHY: why there are no kernels, for the line that says SKIP.
cannot() {
    # shellcheck disable=SC2034 # of scripts/kernels.sh
    FETCH_WHY=$*
    return 1
}

# private_apt PROGRAM ARGUMENTS: apt's PROGRAM with the private lists; to it, no package is installed.
private_apt() {
    local program=$1
    shift
    APT_CONFIG=$KERNELS_CACHE/apt/apt.conf timeout -k 5 600 "$program" -o APT::Sandbox::User=root \
        -o Debug::NoLocking=1 -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false "$@"
}

# kernels_lists: reads what Debian offers, at most once a day. The mirror is the one that this machine's
# own release comes from.
kernels_lists() {
    local apt=$KERNELS_CACHE/apt mirror suite
    [ "$(uname -m)" = x86_64 ] || cannot "only x86-64 kernels are run, this is $(uname -m)" || return
    have apt-get || cannot "there is no apt-get" || return
    RELEASE=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    grep -qx 'ID=debian' /etc/os-release || cannot "not Debian: its kernels are not on this machine's mirror" || return
    [ -e "$KEYRING" ] || cannot "no $KEYRING (apt-get install debian-archive-keyring)" || return
    mirror=$(debian_mirror)
    [ -n "$mirror" ] || cannot "apt's sources have no mirror of $RELEASE" || return

    mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" || cannot "cannot write to $apt" || return
    : >"$apt/status"
    cat >"$apt/apt.conf" <<END
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "$apt/state";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
APT::Architectures "amd64";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::http::Timeout "20";
END
    # shellcheck disable=SC2086 # a list of words
    for suite in $(printf '%s\n' $SUITES "$RELEASE" "$RELEASE-backports" | sort -u); do
        printf 'deb [signed-by=%s] %s %s main\n' "$KEYRING" "$mirror" "$suite"
    done >"$apt/sources.new"
    if cmp -s "$apt/sources.new" "$apt/sources.list" && [ -n "$(find "$apt/updated" -mtime -1 2>/dev/null)" ]; then
        return
    fi
    mv "$apt/sources.new" "$apt/sources.list"
    say "reading the lists of Debian's kernels"
    # A suite that the mirror does not have any more is an error of apt's, and none here.
    private_apt apt-get update -qq >"$apt/update.log" 2>&1 || say "$(grep -m1 -E '^(E:|W: Failed)' "$apt/update.log")"
    [ -n "$(kernels_offered)" ] || cannot "no kernels in apt's lists: $(grep -m1 -E '^(E:|W: Failed)' "$apt/update.log")" || return
    : >"$apt/updated"
}

# kernels_offered: "6.12 PACKAGE VERSION" for the newest package of each kernel series, oldest first. From
# 6.19 on the kernel itself is in linux-binary, and linux-image only depends on it.
kernels_offered() {
    private_apt apt-cache search --names-only --full '^linux-(image|binary)-[0-9][^-]*(-[0-9]+)?-cloud-amd64$' |
        awk '$1 == "Package:" { p = $2 } $1 == "Version:" && $2 !~ /rc/ {
            split(p, part, "-"); split(part[3], v, ".")
            print v[1] "." v[2], part[2] == "binary" ? 1 : 2, p, $2
        }' | sort -k1,1V -k2,2n -k4,4Vr | awk '!seen[$1]++ { print $1, $3, $4 }'
}

# unpack PACKAGE=VERSION TO PATTERN...: the files of a package that match, without their folders.
unpack() {
    local package=$1 to=$2 work=$KERNELS_CACHE/get.$$
    shift 2
    rm -rf "$work"
    mkdir -p "$work" "$to"
    say "fetching ${package/=/ }"
    if (cd "$work" && private_apt apt-get download -qq "$package") >"$KERNELS_CACHE/apt/get.log" 2>&1 &&
        dpkg-deb --fsys-tarfile "$work"/*.deb >"$work/tar"; then
        # tar fails where one pattern matches nothing, which is fine: the caller checks.
        tar -x -f "$work/tar" -C "$to" --wildcards --transform 's|.*/||' "$@" 2>/dev/null || :
        rm -rf "$work"
        return
    fi
    rm -rf "$work"
    cannot "${package/=/ } cannot be fetched: $(tail -1 "$KERNELS_CACHE/apt/get.log")"
}

# kernel_get NAME PACKAGE VERSION: the kernel, and the modules of swap on zram, once.
kernel_get() {
    local to=$KERNELS_CACHE/kernels/$1 modules=('*/zram.ko*' '*/zsmalloc.ko*' '*/lz4*.ko*')
    [ "$(cat "$to/version" 2>/dev/null)" = "$3" ] && return
    rm -rf "$to"
    unpack "$2=$3" "$to" '*/vmlinuz*' "${modules[@]}" || return
    # From 6.19 on modules have a package of their own; without them only zram is not tried.
    case $2 in
    linux-binary-*) unpack "linux-modules-${2#linux-binary-}=$3" "$to" "${modules[@]}" || say "$FETCH_WHY" ;;
    esac
    [ -e "$to/vmlinuz" ] || mv "$to"/vmlinuz-* "$to/vmlinuz" 2>/dev/null || cannot "$2 has no vmlinuz" || return
    find "$to" -name '*.ko.xz' -exec xz -d {} +
    echo "$3" >"$to/version"
}

# qemu_get: sets QEMU, the command. The machine's own where it is new enough.
qemu_get() {
    local to=$KERNELS_CACHE/qemu suite version
    if have qemu-system-x86_64; then
        version=$(qemu-system-x86_64 --version | sed -n 's/.*version \([0-9]*\).*/\1/p')
        [ "${version:-0}" -lt "$QEMU_MAJOR" ] || { QEMU=(qemu-system-x86_64) && return; }
    fi
    for suite in "$RELEASE" "$RELEASE-backports"; do
        version=$(private_apt apt-cache madison qemu-system-x86 | awk -v suite="$suite/main" '$6 == suite { print $3; exit }')
        version=${version#*:}
        [ "${version%%.*}" -lt "$QEMU_MAJOR" ] 2>/dev/null || break
    done
    [ -n "$version" ] || cannot "no qemu $QEMU_MAJOR or newer: $RELEASE and its backports offer none" || return
    if [ "$(cat "$to/version" 2>/dev/null)" != "$version" ]; then
        say "fetching qemu $version"
        rm -rf "$to"
        mkdir -p "$to"
        # What the machine has of the libraries is not fetched: here apt gets a list of what is installed.
        private_apt apt-get -o Dir::State::status=/var/lib/dpkg/status -o APT::Default-Release="$RELEASE" \
            -o Dir::Cache::archives="$to" install -qq -d -y --no-install-recommends \
            {qemu-system-{x86,common,data},seabios}/"$suite" >"$KERNELS_CACHE/apt/get.log" 2>&1 ||
            cannot "qemu cannot be fetched: $(tail -1 "$KERNELS_CACHE/apt/get.log")" || return
        find "$to" -name '*.deb' -exec dpkg-deb -x {} "$to" \; -delete
        echo "$version" >"$to/version"
    fi
    QEMU=(env "LD_LIBRARY_PATH=$to/usr/lib/x86_64-linux-gnu:$to/lib/x86_64-linux-gnu"
        "$to/usr/bin/qemu-system-x86_64" -L "$to/usr/share/qemu" -L "$to/usr/share/seabios")
    "${QEMU[@]}" --version >/dev/null 2>"$KERNELS_CACHE/apt/get.log" ||
        cannot "qemu $version does not run: $(tail -1 "$KERNELS_CACHE/apt/get.log")"
}
