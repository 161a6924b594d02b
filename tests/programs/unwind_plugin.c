/* A library that is closed, or deleted, after it was captured. */
#include <stddef.h>
extern void plugin_callback(size_t n);
static volatile size_t plugin_sink;
__attribute__((noinline)) static void plugin_hidden(size_t n) {
	volatile size_t local[40];
	local[n % 40] = n;
	plugin_callback(n);
	plugin_sink += local[n % 40];
}
void plugin_entry(size_t n) {
	plugin_hidden(n + 1);
	plugin_sink++;
}
