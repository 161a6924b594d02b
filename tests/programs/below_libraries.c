// 64 KiB of its own, which the kernel puts right below what the loader allocated, in the same VMA; and static TLS.
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static _Thread_local char mine[12 << 10];

int main(void)
{
    char *own = mmap(NULL, 64 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED)
        return 1;
    memset(own, 1, 4096);
    memset(mine, 2, sizeof mine);
    puts("READY");
    fflush(stdout);
    return getchar() == EOF ? 0 : mine[5];
}
