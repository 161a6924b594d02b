# shellcheck shell=sh
# shellcheck disable=SC2154,SC3045 # $out is of init; busybox has read -t
# What is run in the guest, to be sourced by its init: one function a set, which leaves its files in $out.
# Nothing is judged here; scripts/kernels/check.py reads the files on the host.

SEEDS=$(parameter seeds | tr , ' ')
BACKENDS=$(parameter backends | tr , ' ')
SEEDS=${SEEDS:-1 5 6 7}
BACKENDS=${BACKENDS:-bpf perf notify}

# t NAME LIMIT COMMAND...: NAME.rc gets the exit status and the seconds; after LIMIT seconds it is killed.
t() {
    name=$1
    limit=$2
    shift 2
    read -r begun _ </proc/uptime
    timeout -s KILL "$limit" "$@" >"$out/$name.out" 2>"$out/$name.err"
    rc=$?
    read -r now _ </proc/uptime
    echo "$rc $(awk "BEGIN { printf \"%.1f\", $now - $begun }")" >"$out/$name.rc"
}

# json NAME LIMIT COMMAND [OPTIONS] -- PROGRAM...: as t, with the report as JSON in NAME.json.
json() {
    name=$1
    limit=$2
    command=$3
    shift 3
    t "$name" "$limit" vmaudit "$command" -f json --report "$out/$name.json" "$@"
}

set_doctor() {
    t doctor 120 vmaudit doctor -f json
    t text 120 vmaudit doctor
}

# Every program of every command, on a command that does nothing.
set_load() {
    set_doctor
    json run 60 run --as-root --backend bpf -v -- /bin/true
    json touch 60 run --as-root --touch -- /bin/true
    json heap 60 heap --as-root -- /t/blocks 1 1 1
    json combined 60 heap --as-root --combined -- /t/blocks 1 1 1
    json sample 60 heap --as-root --sample 4096 -- /t/blocks 1 1 1
    json probe 60 probe --as-root --lib /t/blocks --match '^passed$' -- /t/blocks 1 1 1
    json stacks 60 probe --as-root --stacks --lib /t/blocks --match '^passed$' -- /t/blocks 1 1 1
}

# backend NAME: what is resident, and how many calls were seen.
backend() {
    json known 60 run --as-root --backend "$1" -- /t/known "$out/known" /tmp/file
    t count 120 vmaudit run --as-root --backend "$1" -o /tmp/rec --report "$out/count.txt" -- /t/counted 4 250
    t events 60 vmaudit events -f json --no-stacks --min-size 77824 --max-size 77824 --call mmap,mprotect,munmap /tmp/rec
    # one object a line; a line may also say that something was lost
    grep -c '"call":' "$out/events.out" >"$out/counted"
    rm -f "$out/events.out" /tmp/rec /tmp/file
    t true 60 vmaudit run --as-root --backend "$1" -v -- /bin/true
}
set_bpf() { backend bpf; }
set_perf() { backend perf; }
set_notify() { backend notify; }

set_seeds() {
    for backend in $BACKENDS; do
        for seed in $SEEDS; do
            mode=normal
            threads=5
            case $((seed % 8)) in 5) mode='exec' ;; 6) mode=thread-exec ;; 7) mode=leaf ;; esac
            # docs/backends.md: forks of a process with several threads are not exact with perf, nor before 6.7
            inexact=perf
            case $(uname -r) in 5.* | 6.[0-6].*) inexact=$backend ;; esac
            [ "$mode" = leaf ] || [ "$backend" != "$inexact" ] || [ "$backend" = notify ] || threads=1
            mkdir -p "$out/$backend-$seed"
            json "$backend-$seed" 200 run --as-root --backend "$backend" -- \
                /t/churn "$seed" $threads 150 "$out/$backend-$seed/maps" "$mode"
        done
    done
}

# start_steps: /t/steps, ready, as $pid; its input is 3, its output 4.
start_steps() {
    mkfifo /tmp/in /tmp/said
    /t/steps "$out/maps" </tmp/in >/tmp/said &
    pid=$!
    exec 3>/tmp/in 4</tmp/said
    read -r -t 60 _ <&4
    rm -f /tmp/in /tmp/said
}
grow() {
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        echo >&3
        read -r -t 60 _ <&4
    done
}
end_steps() {
    exec 3>&- 4<&-
    wait "$pid"
}

set_snapshot() {
    start_steps
    json snapshot 60 snapshot -p "$pid"
    cat "/proc/$pid/smaps" >"$out/smaps"
    end_steps
}

# attach_and_grow NAME LIMIT COMMAND OPTIONS...: as json, and /t/steps with it: once vmaudit traces, ten calls, then
# SIGTERM (a shell keeps SIGINT from what it starts in the background). A pipe stands in for the file of what vmaudit says.
attach_and_grow() {
    mkfifo "$out/$1.err"
    # exec: around a function, ash keeps a copy of what it redirects, and steps would not see its input end
    (exec 3>&- 4<&- && json "$@") &
    audit=$!
    exec 5<"$out/$1.err"
    while read -r -t 60 line <&5; do
        echo "$line"
        case $line in *'Ctrl-C ends tracing'*) grow && kill -TERM "$(pidof vmaudit)" && break ;; esac
    done >/tmp/said
    cat <&5 >>/tmp/said 3>&- 4<&-
    wait "$audit"
    exec 5<&-
    end_steps
    mv /tmp/said "$out/$1.err"
}

set_attach() {
    start_steps
    attach_and_grow attach 120 attach -p "$pid"
}

set_touch() {
    json touch 90 run --as-root --touch -- /t/touch shares 1000
}

set_heap() {
    json heap 200 heap --as-root -- /t/blocks 8 1500 200
    json sample 200 heap --as-root --sample 4096 -- /t/blocks 8 500 200
}
set_combined() {
    json combined 200 heap --as-root --combined -- /t/blocks 8 1500 200
}

set_probe() {
    ways="auto multi single"
    # uprobe multi is of 6.6
    case $(uname -r) in 5.* | 6.[0-5].*) ways="auto single" ;; esac
    for way in $ways; do
        json "$way" 100 probe --as-root --way "$way" --lib /t/blocks --match '^passed$' -- /t/blocks 4 1000 5
    done
    json stacks 200 probe --as-root --stacks --lib /t/blocks --match '^passed$' -- /t/blocks 8 500 5
}

# A recording says what the run said: the same report, byte for byte, the calls and an address.
set_recording() {
    t run 60 vmaudit run --as-root -o /tmp/rec --report "$out/run.txt" -- /t/known "$out/known" /tmp/file
    t report 60 vmaudit report /tmp/rec
    t replay 60 vmaudit report --replay /tmp/rec
    t events 60 vmaudit events -f json --no-stacks /tmp/rec
    json live 60 events --as-root -- /t/known "$out/known-live" /tmp/file
    t explain 60 vmaudit explain -f json /tmp/rec "$(cut -d ' ' -f 1 "$out/known" | head -n 1)"
    rm -f /tmp/rec /tmp/file
}

# 56 bits of address space: a mapping above 47 bits.
set_la57() {
    for backend in $BACKENDS; do
        json "$backend" 60 run --as-root --backend "$backend" -- \
            /t/known "$out/$backend.known" /tmp/file 0x10000000000000
    done
    json touch 60 run --as-root --touch -- /t/known "$out/touch.known" /tmp/file 0x10000000000000
}

# By cgroup, where v2 is all there is.
set_cgroup() {
    mount -t cgroup2 cgroup /sys/fs/cgroup && mkdir -p /sys/fs/cgroup/a
    start_steps
    echo "$pid" >/sys/fs/cgroup/a/cgroup.procs
    json snapshot 60 snapshot --cgroup /sys/fs/cgroup/a
    attach_and_grow attach 120 attach --cgroup /sys/fs/cgroup/a
    cat /proc/mounts >"$out/mounts"
}

set_swap() {
    # zram's modules depend on each other: whatever loads, until all have
    for _ in 1 2 3; do
        for module in /modules/*.ko; do insmod "$module" 2>>"$out/insmod"; done
    done
    # the default, lzo-rle, is one more module
    echo lz4 >/sys/block/zram0/comp_algorithm
    echo 256M >/sys/block/zram0/disksize
    mkswap /dev/zram0 && swapon /dev/zram0
    cat /proc/swaps >"$out/swaps"
    for backend in $BACKENDS; do
        json "$backend" 90 run --as-root --backend "$backend" -- /t/paged swap "$out/$backend.smaps"
    done
}

set_huge() {
    echo 8 >/proc/sys/vm/nr_hugepages
    for backend in $BACKENDS; do
        json "$backend" 90 run --as-root --backend "$backend" -- /t/paged huge "$out/$backend.smaps"
    done
}
