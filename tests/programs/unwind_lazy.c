#include "unwind_capture.h"

extern void (*lazy_hook)(void);
extern void lazy_function(void);
static volatile size_t sink;

__attribute__((noinline)) void hook(void) {
	sink += (size_t)mmap(NULL, CAP_LEN, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

__attribute__((noinline)) void binds(size_t n) {
	lazy_function();
	sink += n;
}

int main(int argc, char **argv) {
	(void)argv;
	cap_install();
	lazy_hook = hook;
	binds((size_t)argc);
	return 0;
}
