#!/bin/bash
# Runs the built-in rules that are data (docs/rules.md) on the real programs, those that are installed, with and without
# the setting that each advises, and prints what was promised beside what was saved:
#   sudo scripts/prove.sh [--runs N] [--seconds N] [RULE or GROUP…]
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
need_root
[ -x "$VMAUDIT" ] || build_release
exec "$(PATH=/usr/bin:$PATH command -v python3)" "$ROOT/scripts/prove.py" --vmaudit "$VMAUDIT" "$@"
