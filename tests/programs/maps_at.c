/* Reserves 64 MiB and maps 16 MiB of it at the address that it chose, as runtimes commit their heaps; 3 MiB from malloc. */
#include <stdlib.h>
#include <sys/mman.h>

int main(void)
{
    char *block = malloc(3 << 20);
    void *volatile small = malloc(100);
    free(small);
    char *base = mmap(NULL, 64 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!block || base == MAP_FAILED)
        return 1;
    char *used = mmap(base, 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (used == MAP_FAILED)
        return 1;
    used[3] = block[5] = 1;
    return 0;
}
