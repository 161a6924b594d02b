/* N pairs of malloc and free of 16 to 1,039 bytes under a stack of ten frames of its own, then prints the
 * nanoseconds a pair took.   heap_loop N */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static __attribute__((noinline)) void pairs(long n)
{
    for (long i = 0; i < n; i++) {
        char *p = malloc(16 + (size_t)(i & 1023));
        if (!p)
            abort();
        *(volatile char *)p = 1;
        free(p);
    }
}

/* Some bytes of locals in each frame, and work after the call, so that no call becomes a jump. */
#define F(me, callee)                                       \
    static __attribute__((noinline)) void me(long n)        \
    {                                                       \
        volatile char local[40];                            \
        local[0] = (char)n;                                 \
        callee(n);                                          \
        local[1] = local[0];                                \
    }
F(f1, pairs) F(f2, f1) F(f3, f2) F(f4, f3) F(f5, f4) F(f6, f5) F(f7, f6) F(f8, f7)

int main(int argc, char **argv)
{
    long n = argc > 1 ? atol(argv[1]) : 100000;
    struct timespec a, b;
    f8(n > 100 ? 100 : n);
    clock_gettime(CLOCK_MONOTONIC, &a);
    f8(n);
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("%.1f\n", ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / (double)n);
    return 0;
}
