/* A function whose address the dynamic loader resolves when it is first called: below
 * _dl_runtime_resolve, which keeps its frame in rbx. */
#include <stddef.h>
void (*lazy_hook)(void);
static volatile size_t lazy_sink;
static void implementation(void) { lazy_sink++; }
static void *choose(void) {
	if (lazy_hook) lazy_hook();
	lazy_sink++;
	return (void *)implementation;
}
void lazy_function(void) __attribute__((ifunc("choose")));
