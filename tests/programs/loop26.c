/* N pairs of mmap and munmap of 64 KiB under a stack of 26 frames (mmap, pair, f1 … f20, main and
 * three of the C library's), then prints the nanoseconds a pair took.   loop26 N */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static __attribute__((noinline)) void pair(long n)
{
    for (long i = 0; i < n; i++) {
        void *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || munmap(p, 65536))
            abort();
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
F(f1, pair) F(f2, f1) F(f3, f2) F(f4, f3) F(f5, f4) F(f6, f5) F(f7, f6) F(f8, f7) F(f9, f8) F(f10, f9)
F(f11, f10) F(f12, f11) F(f13, f12) F(f14, f13) F(f15, f14) F(f16, f15) F(f17, f16) F(f18, f17) F(f19, f18) F(f20, f19)

int main(int argc, char **argv)
{
    long n = argc > 1 ? atol(argv[1]) : 100000;
    struct timespec a, b;
    f20(n > 100 ? 100 : n);
    clock_gettime(CLOCK_MONOTONIC, &a);
    f20(n);
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("%.1f\n", ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / (double)n);
    return 0;
}
