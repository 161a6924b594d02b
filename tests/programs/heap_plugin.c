/* An allocator that comes with a library: named as jemalloc's with a prefix. */
static char arena[100000];
static unsigned long used;

__attribute__((noinline)) void *je_malloc(unsigned long size)
{
	void *block = arena + used;

	used += (size + 15) & ~15ul;
	return block;
}

__attribute__((noinline)) void je_free(void *block)
{
	*(volatile char *)block = 0;
}

/* The first call of the library is an allocation. */
void heap_plugin_run(void)
{
	for (int i = 1; i <= 100; i++)
		je_malloc(i);
	je_free(je_malloc(9));
}
