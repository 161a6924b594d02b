/* ARGV[1] mappings of one page each, kept apart by alternating protection, each touched.
 * Prints "ready", then waits for its standard input to end.
 *   cc -O1 -o procfs_many procfs_many.c
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
    size_t count = argc > 1 ? strtoul(argv[1], NULL, 10) : 65000;
    char *at = mmap(NULL, count * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return 1;
    for (size_t i = 0; i < count; i++) {
        at[i * 4096] = 1;
        if (i % 2 && mprotect(at + i * 4096, 4096, PROT_READ)) {
            perror("mprotect");
            break;
        }
    }
    puts("ready");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    return 0;
}
