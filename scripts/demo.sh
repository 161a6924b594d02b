#!/bin/bash
# Shows what vmaudit does, without any configuration, on a machine with Debian 12:
#   sudo scripts/demo.sh
# 1. a small C program with jemalloc linked in whose threads cost 64 MiB each, and why;
# 2. redis-server under a short load.
# Nothing is left behind but target/; the server listens on loopback on a port of its own.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
need_root

apt_install gcc binutils libc6-dev libjemalloc-dev libstdc++-12-dev || apt_install gcc g++ binutils libc6-dev libjemalloc-dev ||
    die "cannot install what the demonstration program needs (gcc, libjemalloc-dev)"
apt_install redis-server redis-tools || die "cannot install redis-server"
# Names inside the C library; the reports are right without, only less readable.
apt_install libc6-dbg || say "no libc6-dbg: functions inside libc show as offsets"
build_release

work=$(mktemp -d "${TMPDIR:-/tmp}/vmaudit-demo.XXXXXX")
audit=
clean_up() {
    local rc=$?
    trap - EXIT INT TERM
    if [ -n "$audit" ] && kill -0 "$audit" 2>/dev/null; then
        redis-cli -h 127.0.0.1 -p "$port" shutdown nosave >/dev/null 2>&1 || :
        kill -INT "$audit" 2>/dev/null || :
        wait "$audit" 2>/dev/null || :
    fi
    rm -rf "$work"
    exit $rc
}
trap clean_up EXIT
trap 'exit 130' INT TERM

title() { printf '\n== %s\n\n' "$*"; }

title "A C program on jemalloc: vmaudit run -- two_allocators"
"$ROOT/scripts/demo/build.sh" "$ROOT/target/demo/two_allocators"
"$VMAUDIT" run --as-root -- "$ROOT/target/demo/two_allocators"

title "redis-server under load: vmaudit run -- redis-server"
port=$(free_port 26379)
"$VMAUDIT" run --as-root --report "$work/redis.txt" -- \
    redis-server --port "$port" --bind 127.0.0.1 --save '' --appendonly no --dir "$work" --daemonize no >"$work/redis.log" &
audit=$!
wait_for_redis "$port"
redis-benchmark -h 127.0.0.1 -p "$port" -q -n 20000 -r 20000 -d 512 -c 20 -t set,get,lpush
redis-cli -h 127.0.0.1 -p "$port" shutdown nosave >/dev/null 2>&1 || :
wait "$audit" || die "the audited redis-server ended with status $?: $(tail -3 "$work/redis.log")"
audit=
cat "$work/redis.txt"
