/* Memory that is not in ordinary pages: copies its smaps to OUT and leaves, and says where it is.
 *   paged swap OUT     64 MiB written, half of it paged out
 *   paged huge OUT     four huge pages of hugetlbfs, two of them written; 32 MiB that may become
 *                      transparent huge pages, half written */
#define _GNU_SOURCE
#include "proc_copy.h"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define MIB (1UL << 20)

static char *map(size_t len, int flags)
{
    char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

    if (p == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return p;
}

static void say(const char *kind, const char *p)
{
    printf("%#lx %s\n", (unsigned long)p, kind);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    char *p;

    if (argc < 3)
        return 2;
    if (!strcmp(argv[1], "swap")) {
        p = map(64 * MIB, 0);
        madvise(p, 64 * MIB, MADV_NOHUGEPAGE);
        for (size_t i = 0; i < 64 * MIB; i += 4096)
            *(size_t *)(p + i) = i * 2654435761U;
        if (madvise(p, 32 * MIB, MADV_PAGEOUT))
            perror("MADV_PAGEOUT");
        say("swapped", p);
    } else {
        p = map(8 * MIB, MAP_HUGETLB);
        p[0] = p[2 * MIB] = 1;
        say("hugetlb", p);
        p = map(32 * MIB, 0);
        madvise(p, 32 * MIB, MADV_HUGEPAGE);
        for (size_t i = 0; i < 16 * MIB; i += 4096)
            p[i] = 1;
        say("transparent", p);
    }
    proc_copy("/proc/self/smaps", argv[2]);
    _exit(0);
}
