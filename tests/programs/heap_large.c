/* Blocks larger than any page of them could have in common, and requests that cannot be met. Prints its number, and what it holds
 * of the large ones: bytes, blocks.   heap_large N SIZE */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void **kept;

__attribute__((noinline)) static void refused(void)
{
    for (int i = 0; i < 30; i++) {
        void *volatile block = malloc(64), *volatile more = realloc(block, (size_t)1 << 60);
        if (more)
            abort();
        kept[i] = block;
    }
    for (int i = 0; i < 2; i++) {
        void *volatile block = malloc((size_t)1 << 60);
        if (block)
            abort();
    }
}

__attribute__((noinline)) static uint64_t large(long n, size_t size)
{
    uint64_t held = 0;
    for (long i = 0; i < n; i++) {
        kept[i] = malloc(size + (size_t)i);
        if (!kept[i])
            abort();
    }
    for (long i = 0; i < n; i += 3) {
        free(kept[i]);
        kept[i] = NULL;
    }
    /* Some become smaller, and some grow. */
    for (long i = 1; i < n; i += 3)
        kept[i] = realloc(kept[i], i % 2 ? size / 2 : 2 * size);
    for (long i = 0; i < n; i++)
        held += !kept[i] ? 0 : i % 3 == 2 ? size + (uint64_t)i : i % 2 ? size / 2 : 2 * size;
    return held;
}

int main(int argc, char **argv)
{
    long n = argc > 2 ? atol(argv[1]) : 1000;
    kept = calloc((size_t)n + 64, sizeof *kept);
    refused();
    uint64_t held = large(n, argc > 2 ? (size_t)atol(argv[2]) : 1 << 20);
    printf("%d %llu %ld\n", getpid(), (unsigned long long)held, n - (n + 2) / 3);
    return 0;
}
