/* Blocks under many paths of calls, of functions that are found in three ways: by rsp, by rbp (their frames have a size
 * that is known when they run), and such that have rbp for a value of their own. Each block is requested several times, in
 * an order without a pattern. Prints each path (letters, outermost first), blocks and bytes.
 * All paths begin with the same COMMON calls.
 * heap_paths PATHS DEPTH CALLS COMMON */
#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEEPEST 96

static int depth;
static const char *path;
static size_t size;
static unsigned long state = 88172645463325252ul;

static unsigned long next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void plain(int i);
static void sized(int i);
static void other(int i);

static inline __attribute__((always_inline)) void go(int i)
{
    if (i == depth) {
        if (!malloc(size))
            abort();
    } else if (path[i] == 'p') {
        plain(i + 1);
    } else if (path[i] == 's') {
        sized(i + 1);
    } else {
        other(i + 1);
    }
    /* No call is the last thing that a function does. */
    __asm__ volatile("");
}

static __attribute__((noinline)) void plain(int i)
{
    volatile char local[24];
    local[0] = (char)i;
    go(i);
}

static __attribute__((noinline)) void sized(int i)
{
    volatile char *local = alloca(16 + (next() & 3) * 16);
    local[0] = (char)i;
    go(i);
}

/* Another value each time, where an unwinder by frame pointers expects one. */
static __attribute__((noinline)) void other(int i)
{
    unsigned long value = next();
    __asm__ volatile("mov %0, %%rbp" : : "r"(value) : "rbp");
    go(i);
    __asm__ volatile("" : : : "rbp");
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    int paths = atoi(argv[1]), calls = atoi(argv[3]), common = atoi(argv[4]);
    depth = atoi(argv[2]);
    if (paths < 1 || depth < 1 || depth >= DEEPEST)
        return 2;
    char(*all)[DEEPEST] = calloc(paths, sizeof *all);
    long *blocks = calloc(paths, sizeof *blocks);
    for (int n = 0; n < paths; n++)
        for (int i = 0; i < depth; i++)
            all[n][i] = n && i < common ? all[0][i] : "pso"[next() % 3];
    for (int call = 0; call < calls; call++) {
        int n = next() % paths;
        path = all[n];
        size = 16 + n % 1000;
        blocks[n]++;
        go(0);
    }
    for (int n = 0; n < paths; n++)
        if (blocks[n])
            printf("%s %ld %ld\n", all[n], blocks[n], blocks[n] * (16 + n % 1000));
    return 0;
}
