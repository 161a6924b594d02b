#!/bin/bash
# Fuzzes the parsers of foreign bytes, one after the other, each for 10 minutes:
#   scripts/fuzz.sh [TARGET…] [--seconds N] [--list]
# Needs a nightly toolchain and cargo-fuzz; no root. It begins with fuzz/seeds and fixtures of the tests, and goes on
# with what earlier runs found (fuzz/corpus). An input that breaks something is kept in fuzz/artifacts.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

seconds=600
targets=()
cd "$ROOT" || exit 1
all=$(cd fuzz/fuzz_targets && printf '%s\n' *.rs | sed 's/\.rs$//')
while [ $# -gt 0 ]; do
    case $1 in
    --seconds)
        seconds=${2:-}
        [[ $seconds =~ ^[1-9][0-9]*$ ]] || die "--seconds needs a number of seconds"
        shift
        ;;
    --list) printf '%s\n' "$all" && exit ;;
    -*) die "no such option: $1 (scripts/fuzz.sh [TARGET…] [--seconds N] [--list])" ;;
    *)
        grep -qx -- "$1" <<<"$all" || die "no such target: $1 (there are $(tr '\n' ' ' <<<"$all"))"
        targets+=("$1")
        ;;
    esac
    shift
done
[ ${#targets[@]} -gt 0 ] || mapfile -t targets <<<"$all"

find_cargo
cargo +nightly --version >/dev/null 2>&1 || die "needs a nightly toolchain: rustup toolchain install nightly --profile minimal"
have cargo-fuzz || die "needs cargo-fuzz: cargo install cargo-fuzz --locked"

# Without the address sanitizer: the parsers are safe Rust, and run twice as often without it. What reads and writes shared memory
# is not: it has the sanitizer.
is_unsafe() {
    [[ $1 = heap_* ]]
}
mkdir -p fuzz/artifacts
for target in "${targets[@]}"; do
    options=(--sanitizer none)
    ! is_unsafe "$target" || options=(--sanitizer address --target-dir fuzz/target/address)
    nice cargo +nightly fuzz build "${options[@]}" "$target" >fuzz/artifacts/build.log 2>&1 ||
        die "$target cannot be built: $(grep -m1 '^error' fuzz/artifacts/build.log) (fuzz/artifacts/build.log)"
done

# The folders of a target's seeds.
seeds() {
    case $1 in
    maps | smaps) echo tests/fixtures/captures ;;
    descriptions) echo src/heap/describe/builtin ;;
    functions) echo fuzz/seeds/elf ;;
    rules) echo src/attribution/rules/data/builtin ;;
    *) echo "fuzz/seeds/$1" ;;
    esac
}

rc=0
for target in "${targets[@]}"; do
    mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target"
    log=fuzz/artifacts/$target.log
    began=$SECONDS
    built=fuzz/target
    ! is_unsafe "$target" || built=fuzz/target/address
    nice -n 19 "$built/$(uname -m)-unknown-linux-gnu/release/$target" "fuzz/corpus/$target" "$(seeds "$target")" \
        -artifact_prefix="fuzz/artifacts/$target/" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 \
        -max_len=65536 -print_final_stats=1 >"$log" 2>&1
    ended=$?
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    printf '%-13s %9s executions in %s s' "$target" "${runs:-?}" "$((SECONDS - began))"
    if [ "$ended" = 0 ]; then
        echo
    else
        rc=1
        printf ': %s\n' "$(sed -n 's/^Test unit written to //p' "$log" | tail -1)"
        grep -aA1 -m1 'panicked at' "$log" || tail -1 "$log"
    fi
done
exit "$rc"
