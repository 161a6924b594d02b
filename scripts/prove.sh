#!/bin/bash
# Runs the built-in rules that are data (docs/rules.md) on the real programs, those that are installed, with and without
# the setting that each advises, and prints what was promised and what was saved:
#   sudo scripts/prove.sh [--runs N] [--seconds N] [RULE or GROUP…]
# With --sentences the same of the rules that are code (src/attribution/rules/sentences.toml):
#   sudo scripts/prove.sh --sentences [--write] [--slow N] [RULE or part of a program's name…]
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
need_root
[ -x "$VMAUDIT" ] || build_release
what=prove.py
if [ "${1-}" = --sentences ]; then
    what=sentences.py
    shift
fi
exec "$(PATH=/usr/bin:$PATH command -v python3)" "$ROOT/scripts/$what" --vmaudit "$VMAUDIT" "$@"
