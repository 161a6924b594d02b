/* main and 22 more distinct frames, then mmap: for measuring. */
#include "unwind_capture.h"

static volatile size_t sink;

__attribute__((noinline)) void last(size_t n) {
	sink += (size_t)mmap(NULL, CAP_LEN, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + n;
}

/* Each keeps a few values across the call, so that callee-saved registers go to the stack. */
#define STEP(name, next)                                             \
	__attribute__((noinline)) void name(size_t n) {              \
		size_t a = sink + n, b = sink * n, c = sink ^ n;     \
		next(n + 1);                                         \
		sink += a + b * c;                                   \
	}
STEP(f21, last)
STEP(f20, f21)
STEP(f19, f20)
STEP(f18, f19)
STEP(f17, f18)
STEP(f16, f17)
STEP(f15, f16)
STEP(f14, f15)
STEP(f13, f14)
STEP(f12, f13)
STEP(f11, f12)
STEP(f10, f11)
STEP(f9, f10)
STEP(f8, f9)
STEP(f7, f8)
STEP(f6, f7)
STEP(f5, f6)
STEP(f4, f5)
STEP(f3, f4)
STEP(f2, f3)
STEP(f1, f2)

int main(void) {
	cap_install();
	f1(1);
	return 0;
}
