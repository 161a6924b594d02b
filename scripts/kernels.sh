#!/bin/bash
# Runs vmaudit on Debian's kernels, in qemu without KVM, and compares with docs/kernels.md:
#   scripts/kernels.sh [--kernel NAME]... [--variant NAME]... [--short] [--update] [--sets LIST] [--list]
# Needs no root but for packages that are missing. Fails where a kernel does something else than is written.
set -uo pipefail
given=${VMAUDIT:-}
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/kernels/fetch.sh
. "$ROOT/scripts/kernels/fetch.sh"
# shellcheck source=scripts/kernels/boot.sh
. "$ROOT/scripts/kernels/boot.sh"

usage() {
    cat <<'END'
scripts/kernels.sh: runs vmaudit on Debian's kernels in qemu, and compares with docs/kernels.md

  --kernel NAME    only this kernel, as --list names it; may be repeated
  --variant NAME   only this variant of these kernels; may be repeated. `plain` is none
  --short          three kernels, twelve minutes at most together: every program loads, one exact seed, heap with
                   eight threads
  --sets LIST      only these sets (heap,probe), against no table: what is not exact fails
  --repeat N       each of them N times
  --update         write what was measured to docs/kernels.md, instead of comparing
  --list           the kernels that Debian offers, and the variants
  VMAUDIT=FILE     the program to run (without it, the release build)
  KERNELS_CACHE    where kernels are kept (~/.cache/vmaudit-kernels)

Logs, reports and what is wrong with them: target/kernels/. Exit status: 0 as written, 1 not, 77 there are
no kernels to be had.
END
}

DOCUMENT=$ROOT/docs/kernels.md
RESULTS=$ROOT/target/kernels
PLAIN=doctor,bpf,perf,notify,snapshot,attach,touch,heap,combined,probe,recording,seeds
# What all guests of a short run have together.
SHORT_SECONDS=720
VARIANTS="full lazy cpus1 cpus8 la57 lockdown cgroup2 overcommit2 zram hugetlb"

# variant NAME: sets SETS, APPEND (kernel parameters), SMP, CPU, LIMIT (seconds of a guest).
variant() {
    SETS=$PLAIN APPEND='' SMP=2 CPU=max,la57=off MEMORY=2G LIMIT=900
    case $1 in
    plain) ;;
    short) SETS=load,seeds,heap APPEND="vmaudit.seeds=5 vmaudit.backends=bpf" LIMIT=240 ;;
    full | lazy) SETS=bpf,attach,touch,heap,combined,probe,seeds APPEND="preempt=$1" ;;
    cpus1) SETS=bpf,heap,combined,probe,seeds SMP=1 ;;
    cpus8) SETS=bpf,heap,combined,probe,seeds SMP=8 ;;
    la57) SETS=la57 CPU=max ;;
    lockdown) APPEND=lockdown=integrity ;;
    cgroup2) SETS=doctor,cgroup APPEND=cgroup_no_v1=all ;;
    overcommit2) SETS=bpf,perf,notify,heap APPEND=vmaudit.overcommit=2 ;;
    zram) SETS=swap ;;
    hugetlb) SETS=huge ;;
    *) die "no variant $1: plain short $VARIANTS" ;;
    esac
}

# judge FOLDER: what a guest's sets left behind, as lines of "SET<TAB>WORD".
judge() {
    local folder=$1 ended
    ended=$(sed -n 's/^@end \([a-z0-9]*\) .*/\1/p' "$folder/console")
    # shellcheck disable=SC2086 # a list of words
    [ -z "$ended" ] || python3 "$ROOT/scripts/kernels/check.py" "$folder/out" $ended
}

# unfinished CONSOLE: the set that the guest was in when it ended, if any.
unfinished() {
    awk '$1 == "@begin" { now = $2 } $1 == "@end" { now = "" } END { print now }' "$1"
}

# ended_by CONSOLE: how a guest ended that did not finish: "WORD<TAB>why".
ended_by() {
    if grep -q 'Kernel panic' "$1"; then
        printf 'panic\t%s\n' "$(grep -m1 -oE 'BUG: .*|Oops: .*|Kernel panic.*' "$1")"
    else
        printf 'hangs\tno answer within %s s\n' "$LIMIT"
    fi
}

# words FILE: the last word of each set, in the order of the sets.
words() { awk -F '\t' '$1 != "!" { if (!($1 in word)) order[++n] = $1; word[$1] = $2 } END { for (i = 1; i <= n; i++) print order[i] "\t" word[order[i]] }' "$1"; }

# run_row KERNEL VARIANT VMLINUZ: boots until each set has ended, or has taken its guest with it.
run_row() {
    local row=$1 kernel=$3 boots=0 begun=$SECONDS left folder guest broken ended
    [ "$2" = plain ] || row=$1/$2
    variant "$2"
    SETS=${CHOSEN_SETS:-$SETS}
    folder=$RESULTS/$row
    mkdir -p "$folder"
    # A kernel's folder has those of its variants.
    rm -rf "$folder"/boot* "$folder"/{facts,checked,cells}
    left=$SETS
    while [ -n "$left" ]; do
        boots=$((boots + 1))
        guest=$folder/boot$boots
        if [ -n "$DEADLINE" ] && [ $((DEADLINE - SECONDS)) -lt "$LIMIT" ]; then LIMIT=$((DEADLINE - SECONDS)); fi
        [ "$LIMIT" -gt 0 ] || LIMIT=1
        boot "$guest" "$kernel" "vmaudit.sets=$left $APPEND"
        [ -e "$folder/facts" ] || sed -n 's/^@fact //p' "$guest/console" >"$folder/facts"
        judge "$guest" >>"$folder/checked"
        broken=$(unfinished "$guest/console")
        if [ -n "$broken" ]; then
            ended=$(ended_by "$guest/console")
            printf '%s\t%s\n!\t%s\t%s\n' "$broken" "${ended%%$'\t'*}" "$broken" "${ended#*$'\t'}" >>"$folder/checked"
            left=,$left,
            left=${left#*,"$broken",}
            left=${left%,}
        elif grep -q '^@done' "$guest/console"; then
            left=
        else
            # Dead before any set, or between two of them: the rest would fare no better.
            printf '!\tboot\t%s\n' "$(ended_by "$guest/console")" >>"$folder/checked"
            tr , '\n' <<<"$left" | sed 's/$/\tno boot/' >>"$folder/checked"
            left=
        fi
    done
    {
        printf 'preempt\t%s\n' "$(sed -n 's/^preempt //p' "$folder/facts")"
        words "$folder/checked"
        printf 'panics\t%s\n' "$(cat "$folder"/boot*/console | grep -c 'Kernel panic')"
    } >"$folder/cells"
    say "$row: $((SECONDS - begun)) s, $boots guests, $(sed -n 's/^release //p' "$folder/facts")"
    sed -n 's/^!\t\([^\t]*\)\t/    \1: /p' "$folder/checked" >&2
    ROWS+=("$row")
}

skip() {
    printf 'SKIP kernels: %s\n' "$FETCH_WHY"
    exit 77
}

# written: the kernels of the table, oldest first.
written() { sed -n '/kernels: plain/,/end -->/s/^| \([0-9.]*\) |.*/\1/p' "$DOCUMENT"; }

# plan: lines of "KERNEL VARIANT".
plan() {
    local offered newest kernel one some chosen="${CHOSEN[*]}" variants="${ONLY[*]}"
    offered=$(printf '%s\n' "${KERNELS[@]}" | cut -d ' ' -f 1)
    # A kernel that is new in Debian does not turn up in a short run before it is in the table.
    newest=$(grep -xFf <(written) <<<"$offered" | tail -1)
    some=${chosen:-6.1 6.12 ${newest:-$(tail -1 <<<"$offered")}}
    [ -z "$SHORT" ] || variants=short
    [ -z "$CHOSEN_SETS" ] || variants=${variants:-plain}
    if [ -z "$variants" ]; then
        for kernel in ${chosen:-$offered}; do echo "$kernel plain"; done
    fi
    for kernel in $some; do
        for one in ${variants:-$VARIANTS}; do echo "$kernel $one"; done
    done
}

# run_plan: each row of the plan. One kernel that cannot be had does not keep the others from being run.
run_plan() {
    local row kernel one vmlinuz found i plan
    mapfile -t plan < <(plan)
    for row in "${plan[@]}"; do
        read -r kernel one <<<"$row"
        vmlinuz=$KERNELS_CACHE/kernels/$kernel/vmlinuz
        found=$(printf '%s\n' "${KERNELS[@]}" | grep "^$kernel ")
        # shellcheck disable=SC2086 # name, package, version
        [ -z "$found" ] || kernel_get $found || { printf 'SKIP kernel %s: %s\n' "$kernel" "$FETCH_WHY" && continue; }
        [ -s "$vmlinuz" ] || { printf 'SKIP kernel %s: Debian does not offer it (--list)\n' "$kernel" && continue; }
        [ -z "$SHORT" ] || DEADLINE=${DEADLINE:-$((SECONDS + SHORT_SECONDS))}
        for i in $(seq "$REPEAT"); do
            [ "$REPEAT" = 1 ] || say "$kernel: $i of $REPEAT"
            run_row "$kernel" "$one" "$vmlinuz"
            [ -z "$CHOSEN_SETS" ] || all_exact "${ROWS[-1]}"
        done
    done
}

# all_exact ROW: whether each set did all that it could, without a panic.
all_exact() {
    local other
    other=$(grep -vE $'^(preempt|residency|doctor)\t|\t(exact|[0-9]+/[0-9]+)$|^panics\t0$' "$RESULTS/$1/cells")
    [ -z "$other" ] || die "$1: $(paste -sd ' ' <<<"$other")"
}

table() { python3 "$ROOT/scripts/kernels/table.py" "$1" "$DOCUMENT" "$RESULTS" "${ROWS[@]}"; }

main() {
    KERNELS=() ONLY=() CHOSEN=() ROWS=() SHORT='' CHOSEN_SETS='' REPEAT=1 ACTION=compare LIST='' GUEST='' DEADLINE=''
    while [ $# -gt 0 ]; do
        case $1 in
        --kernel) CHOSEN+=("${2:?--kernel needs a name}") && shift ;;
        --variant) ONLY+=("${2:?--variant needs a name}") && variant "$2" && shift ;;
        --sets) CHOSEN_SETS=${2:?--sets needs a list} && shift ;;
        --repeat) REPEAT=${2:?--repeat needs a number} && shift ;;
        --short) SHORT=1 ;;
        --update) ACTION=update ;;
        --list) LIST=1 ;;
        -h | --help) usage && exit ;;
        *) die "unknown argument $1 (--help lists them)" ;;
        esac
        shift
    done

    kernels_lists || skip
    mapfile -t KERNELS < <(kernels_offered)
    if [ -n "$LIST" ]; then
        printf '%s\n' "${KERNELS[@]}" "variants: plain short $VARIANTS" "sets: $PLAIN load la57 cgroup swap huge"
        exit
    fi
    apt_install busybox-static cpio gcc libc6-dev binutils xz-utils python3-minimal ||
        { FETCH_WHY="busybox-static, cpio, gcc, binutils, xz-utils or python3 is missing" && skip; }
    if [ -z "$given" ]; then build_release; fi
    [ -x "$VMAUDIT" ] || die "$VMAUDIT is no program"
    qemu_get || skip
    WORK=$(mktemp -d "${TMPDIR:-/tmp}/vmaudit-kernels.XXXXXX")
    trap clean_up EXIT
    trap 'exit 130' INT TERM
    guest_root "$WORK/root.cpio"

    run_plan
    [ ${#ROWS[@]} -gt 0 ] || exit 77
    [ -z "$CHOSEN_SETS" ] || exit 0
    table print
    table "$ACTION" || die "not as in docs/kernels.md (if that is right, --update writes it)"
}

# shellcheck disable=SC2317 # called by the trap
clean_up() {
    [ -z "$GUEST" ] || kill "$GUEST" 2>/dev/null || :
    rm -rf "$WORK"
}

# In a function: bash reads a script while it runs, and this one runs for long.
main "$@"
exit
