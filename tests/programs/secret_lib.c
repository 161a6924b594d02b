/* An allocator as a description can have it: `secret_open` makes a context that is called as the string
 * says, `secret_take` allocates in it. */
#include <stddef.h>

static char memory[1 << 16];
static size_t used;

__attribute__((noinline)) void secret_open(const char *context, const char *name)
{
	__asm__ volatile("" : : "r"(context), "r"(name) : "memory");
}

__attribute__((noinline)) void *secret_take(size_t size, const char *context)
{
	void *block = memory + used;

	__asm__ volatile("" : : "r"(context) : "memory");
	used += size;
	return block;
}
