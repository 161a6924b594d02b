/* main > start > early > table > virtual > last > mmap, in functions with frame pointers, without unwind
 * tables, and with int3 between them as lld puts it there. Most are called through pointers. With an argument, one
 * without a frame pointer calls the last one. */
#include "unwind_capture.h"

/* Before each function; toplevel statements keep their order (-fno-toplevel-reorder). */
#define PAD __asm__(".text\n.p2align 4, 0xcc");
#define FUNCTION __attribute__((noinline, noclone))

static volatile size_t sink;
static size_t (*volatile next)(size_t), (*volatile innermost)(size_t);

/* So many that what lies between functions can be seen. */
#define FILLER(n) PAD FUNCTION size_t filler##n(size_t x) { return next(x + n) + sink; }
#define TEN(n) FILLER(n##0) FILLER(n##1) FILLER(n##2) FILLER(n##3) FILLER(n##4) FILLER(n##5) FILLER(n##6) \
	FILLER(n##7) FILLER(n##8) FILLER(n##9)
TEN(1) TEN(2) TEN(3) TEN(4) TEN(5)

PAD FUNCTION size_t last(size_t n) {
	sink += (size_t)mmap(NULL, CAP_LEN, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + n;
	return sink;
}

/* rbp is its caller's. */
PAD FUNCTION __attribute__((optimize("omit-frame-pointer"))) size_t unframed(size_t n) {
	next = last;
	return next(n) + sink;
}

PAD FUNCTION size_t virtual(size_t n) {
	volatile char big[200];
	big[n % 100] = 1;
	return innermost(n) + (size_t)big[n % 100];
}

PAD FUNCTION size_t table(size_t n) {
	switch (n & 7) {
	case 0: sink += 3; return sink;
	case 1: sink *= 5; break;
	case 2: sink ^= 7; return next(n + 1);
	case 3: sink -= 9; break;
	case 4: sink |= 11; return next(n + 2) + 1;
	case 5: next = virtual; sink = next(n) + 13; break;
	case 6: sink += 15; return next(n + 3) + 2;
	default: sink += 17;
	}
	return sink + n;
}

/* Nothing to be saved before the check: compilers make the frame behind it. */
PAD FUNCTION size_t early(size_t n) {
	if (n < 3)
		return n;
	next = table;
	return next(n) + sink;
}

PAD FUNCTION size_t start(size_t n) {
	next = early;
	while (n < 5)
		n++;
	return next(n) + sink;
}

TEN(6) TEN(7) TEN(8) TEN(9)

PAD int main(int argc, char **argv) {
	(void)argv;
	cap_install();
	next = start;
	innermost = argc > 1 ? unframed : last;
	sink += next(1);
	return 0;
}
PAD
