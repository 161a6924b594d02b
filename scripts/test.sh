#!/bin/bash
# Runs all tests; installs what they need first. As root for the tests that trace:
#   sudo scripts/test.sh [ARGUMENTS OF THE TEST RUNNER]
# What this machine cannot do is printed as SKIP with the reason, and counted in the line before the last one,
# which is the runner's summary.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

check_rust
# shellcheck disable=SC2086
apt_install $BUILD_PACKAGES || die "cannot install what the build needs: $BUILD_PACKAGES"
apt_install g++ python3-minimal || say "SKIP without g++ or python3: the tests on those programs"
apt_install php-cli python3-numpy || say "SKIP without php-cli or python3-numpy: the bss of real programs"
apt_install ruby sbcl || say "SKIP without ruby or sbcl: the tests on their stacks"
apt_install redis-server redis-tools || say "SKIP without redis-server: the tests on it"
apt_install sqlite3 || say "SKIP without sqlite3: the queries of docs/recording.md"
apt_install golang-go || say "SKIP without go: the tests that run pprof, and those on Go programs"
apt_install openjdk-17-jre-headless || say "SKIP without java: the tests on the JVM"
command -v node >/dev/null || apt_install nodejs || say "SKIP without node: the tests on V8"
apt_install chromium || say "SKIP without chromium: the tests of the HTML report in a browser"
apt_install firefox-esr || say "SKIP without firefox-esr: the test of the HTML report in Firefox"
apt_install heaptrack || say "SKIP without heaptrack: its reading of heap -f heaptrack"
apt_install tmux || say "SKIP without tmux: the tests of top on a terminal"
apt_install libjemalloc-dev binutils || say "SKIP without libjemalloc-dev: the tests on jemalloc"
apt_install postgresql || say "SKIP without postgresql: the test on a backend that leaks"
apt_install docker.io || say "SKIP without docker.io: the tests that start Docker"
apt_install podman runc busybox-static || say "SKIP without podman, runc or busybox: the tests that start Podman"
apt_install valgrind || say "SKIP without valgrind: its memory, and its life beside probes"
apt_install qemu-user || say "SKIP without qemu-user: its life beside probes"
apt_install clang || say "SKIP without clang: its sanitizers"
apt_install musl-tools || say "SKIP without musl-gcc: the tests on musl programs"
apt_install libmimalloc2.0 libmimalloc-dev || say "SKIP without libmimalloc: the tests on programs that use it"
apt_install sbcl || say "SKIP without sbcl: the rule on its heap"
apt_install python3-numpy libopenblas0-pthread || say "SKIP without numpy and libopenblas0-pthread: the rule on its buffers"
apt_install libtcmalloc-minimal4 || say "SKIP without libtcmalloc: the test that probes all of it"
export PATH="$ROOT/target/npm/bin:$PATH"
npm_install deno @deno/linux-x64-glibc@2.9.6 deno || say "SKIP without deno (npm): the test on its V8"
npm_install bun @oven/bun-linux-x64@1.4.5 bin/bun || say "SKIP without bun (npm): the test on its JavaScriptCore"
npm_install compiler google-closure-compiler-linux@20261015.0.0 compiler || say "SKIP without compiler (npm): the test on GraalVM native images"
npm_install azmcp @azure/mcp-linux-x64@2.0.5 dist/azmcp || say "SKIP without azmcp (npm): the tests on .NET"
[ "$(id -u)" = 0 ] || say "SKIP tests that trace with BPF: not root"

cd "$ROOT" || exit 1
# A build without its disk fails late and with words that hide why.
free=$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')
[ -d target ] || [ "$free" -ge 6 ] || say "only $free GiB of disk are free here; building and testing takes about 6"
# The tests that run vmaudit need it fast (200 seeds): they use the release build.
cargo build --release --quiet --bin vmaudit || die "the build failed"
export VMAUDIT=$ROOT/target/release/vmaudit

log=$(mktemp "${TMPDIR:-/tmp}/vmaudit-test.XXXXXX")
trap 'rm -f "$log"' EXIT
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --no-fail-fast --success-output final --status-level fail --final-status-level skip "$@" 2>&1 | tee "$log" |
        awk '/^ *[A-Z]+ \[/ { passed = $1 == "PASS" } !passed'
    rc=${PIPESTATUS[0]}
    cargo test --doc --quiet >/dev/null 2>"$log.doc" || { rc=1; cat "$log.doc"; }
    rm -f "$log.doc"
    summary=$(sed 's/\x1b\[[0-9;]*m//g' "$log" | grep -E '^ *Summary \[' | tail -1)
else
    # --nocapture: SKIP lines are output of tests that pass.
    cargo test --no-fail-fast "$@" -- --nocapture 2>&1 | tee "$log"
    rc=${PIPESTATUS[0]}
    summary=$(awk '/^test result:/ { p += $4; f += $6; i += $8 } END { printf "test result: %s. %d passed; %d failed; %d ignored", f ? "FAILED" : "ok", p, f, i }' "$log")
fi
# nextest's own SKIP lines are tests marked #[ignore]: measurements, to be run by name.
skips=$(sed 's/\x1b\[[0-9;]*m//g' "$log" | sed -E 's/SKIP \[ *\] \([^)]*\) (.*)/SKIP \1: ignored unless named/' | grep -oE 'SKIP .*' | sort -u)
[ -z "$skips" ] || printf '%s\n' "$skips"
# The others are what this machine cannot do (tests/support/mod.rs, skip): "SKIP TEST: REASON".
printf '%s\n' "$skips" | awk '
    !/^SKIP / || /: ignored unless named$/ { next }
    { n++; why = substr($0, index($0, ": ") + 2); if (!count[why]++) order[++reasons] = why }
    END {
        printf "%d skipped by the machine%s", n, (n ? ": " : "")
        for (i = 1; i <= reasons; i++)
            printf "%s%s (%d)", (i > 1 ? "; " : ""), order[i], count[order[i]]
        print ""
    }'
printf '%s\n' "${summary:-no test summary: the build failed}"
exit "$rc"
