#!/bin/sh
# Builds the demonstration program:   build.sh OUTPUT
# jemalloc's static library, with the malloc family renamed to je_*, so that the program has two
# allocators: jemalloc for itself, the C library's for the C library.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
dir=$(dirname "$out")
mkdir -p "$dir"
lib=$(gcc -print-file-name=libjemalloc.a)
[ -f "$lib" ] || { echo "build.sh: libjemalloc.a not found (apt-get install libjemalloc-dev)" >&2; exit 1; }
rename=
for s in malloc calloc realloc free posix_memalign aligned_alloc memalign valloc malloc_usable_size \
    mallocx rallocx xallocx sallocx dallocx sdallocx nallocx mallctl mallctlnametomib mallctlbymib \
    malloc_stats_print malloc_conf malloc_message; do
    rename="$rename --redefine-sym $s=je_$s"
done
# shellcheck disable=SC2086 # a list of words
objcopy $rename "$lib" "$dir/libjemalloc_prefixed.a"
gcc -g -O1 -fno-builtin -Wall -Wextra -pthread -o "$out" "$here/two_allocators.c" \
    "$dir/libjemalloc_prefixed.a" -lstdc++ -lm -ldl
