/* Requests 144 MiB of huge pages, which a machine without a pool of them refuses, and falls back to
 * ordinary ones, as PostgreSQL does. Exit status 0: refused and mapped; 3: huge pages were given. */
#define _GNU_SOURCE
#include <sys/mman.h>

int main(void)
{
    const unsigned long len = 144UL << 20;
    void *p = mmap(0, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (p != MAP_FAILED)
        return 3;
    p = mmap(0, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED;
}
