# shellcheck shell=bash
# To be sourced: what the guests run, and how they are started and ended.

# with_libraries ROOT PROGRAM...: copies the shared libraries of the programs to where they are here.
with_libraries() {
    local root=$1 library
    shift
    for library in $(ldd "$@" 2>/dev/null | grep -o '/[^ :]* (' | cut -d ' ' -f 1 | sort -u); do
        install -D "$library" "$root$library"
    done
}

archive() { (cd "$1" && find . | cpio -o -H newc --quiet); }

# guest_root FILE: the userland of all guests, an initramfs: busybox, vmaudit, and what it audits.
guest_root() {
    # shellcheck disable=SC2153 # of scripts/lib.sh
    local root=$WORK/root here=$ROOT/scripts/kernels source name path
    mkdir -p "$root"/{bin,dev,etc,modules,proc,root,run,sbin,sys,t,tmp,usr/bin,usr/sbin,var}
    cp /bin/busybox "$root/bin/"
    for path in $(busybox --list-full); do
        [ -e "$root/$path" ] || ln -s /bin/busybox "$root/$path"
    done
    # A program of its own: busybox is one file for all of its names.
    cp --remove-destination /bin/true "$root/bin/"
    strip -o "$root/usr/bin/vmaudit" "$VMAUDIT" || die "$VMAUDIT is no program"
    for source in "$here"/programs/*.c "$ROOT"/tests/programs/{churn,touch}.c; do
        name=${source##*/}
        gcc -O2 -g -fomit-frame-pointer -pthread -o "$root/t/${name%.c}" "$source" || die "$source does not compile"
    done
    with_libraries "$root" "$root/usr/bin/vmaudit" "$root/bin/true" "$root"/t/*
    install "$here/guest/init" "$root/init"
    cp "$here/guest/sets.sh" "$root/t/"
    echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
    echo 'root:x:0:' >"$root/etc/group"
    archive "$root" >"$1"
}

# boot FOLDER KERNEL PARAMETERS: a guest's life. Ends by itself, by a panic, or after LIMIT seconds.
# FOLDER gets `console`, `out/` (the files of each set that ended) and `qemu.log`. The guest's settings are in
# SMP, CPU, MEMORY. Never with KVM: what is compared has to be the same on every machine.
boot() {
    local folder=$1 kernel=$2
    mkdir -p "$folder/out"
    : >"$folder/stream"
    mkdir -p "$WORK/modules/modules"
    rm -f "$WORK/modules/modules"/*
    cp "${kernel%/*}"/*.ko "$WORK/modules/modules/" 2>/dev/null || :
    # archives follow each other, to the kernel
    { cat "$WORK/root.cpio" && archive "$WORK/modules"; } >"$WORK/initrd"
    timeout -k 5 "${LIMIT:-900}" nice -n 5 "${QEMU[@]}" -accel tcg,thread=multi -smp "${SMP:-2}" -m "${MEMORY:-2G}" \
        -cpu "${CPU:-max,la57=off}" -nodefaults -no-reboot -display none -serial "file:$folder/console" \
        -serial "file:$folder/stream" -kernel "$kernel" -initrd "$WORK/initrd" \
        -append "console=ttyS0 quiet oops=panic panic=-1 rdinit=/init $3" </dev/null >"$folder/qemu.log" 2>&1 &
    GUEST=$!
    wait "$GUEST"
    echo "$?" >"$folder/status"
    GUEST=
    sed -i 's/\r//g' "$folder/console"
    # One archive after the other; the last one is cut off where the guest died.
    tar -C "$folder/out" -xizf "$folder/stream" 2>/dev/null || :
    rm -f "$folder/stream"
}
