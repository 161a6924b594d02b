#!/bin/bash
# Holds vmaudit's stacks against strace's, frame by frame, on real programs:
#   sudo scripts/compare-stacks.sh [churn|redis|python|cxx|demo]...
# Each program runs once under `vmaudit run --aslr off` and once under `strace -f -k` with ASLR off.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
need_root
apt_install strace python3-minimal util-linux || die "needs strace and python3"
[ -x "$VMAUDIT" ] || build_release
exec "$(PATH=/usr/bin:$PATH command -v python3)" "$ROOT/scripts/compare_stacks.py" --vmaudit "$VMAUDIT" --root "$ROOT" "$@"
