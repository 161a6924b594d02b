// Reserves 1 GiB without access, opens four pages of it, and maps 1 MiB over its start: nobody's heap.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES = 4 };

int main(int argc, char **argv) {
    size_t length = 1UL << 30, step = length / (PAGES + 1);
    char *start = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return 1;
    for (size_t i = 1; i <= PAGES; i++) {
        char *page = start + (i * step & ~4095UL);
        if (mprotect(page, 4096, PROT_READ | PROT_WRITE)) return 1;
        *page = 1;
    }
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(start, 1 << 20, PROT_READ | PROT_WRITE, flags, -1, 0) != start) return 1;
    puts("READY");
    fflush(stdout);
    if (argc > 1) pause();
    return 0;
}
