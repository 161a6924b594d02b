/* A plugin that allocates (heap_reload.c). */
#include <stdlib.h>

void *grab(size_t size)
{
	void *block = malloc(size);

	__asm__ volatile("" ::"r"(block) : "memory");
	return block;
}
