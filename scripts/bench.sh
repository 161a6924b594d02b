#!/bin/bash
# Measures vmaudit side by side with what else there is, in one run, and prints tables for
# docs/measurements.md:   sudo scripts/bench.sh [--rounds N] [--only NAME]... [--workload NAME]
# Peers (bpftrace, perf, strace, redis) are installed where that works, and left out where not.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
need_root
apt_install gcc libc6-dev python3-minimal || die "needs gcc and python3"
apt_install strace || say "SKIP strace"
apt_install bpftrace || say "SKIP bpftrace"
apt_install linux-perf || say "SKIP perf"
apt_install heaptrack || say "SKIP heaptrack"
apt_install redis-server redis-tools || say "SKIP redis"
apt_install libgoogle-perftools4 libjemalloc2 || say "SKIP gperftools, jemalloc"
[ -x "$VMAUDIT" ] || build_release
# bpftrace searches for tracefs below debugfs: mounted for us alone.
exec unshare --mount "$(PATH=/usr/bin:$PATH command -v python3)" "$ROOT/scripts/bench.py" --vmaudit "$VMAUDIT" --root "$ROOT" "$@"
