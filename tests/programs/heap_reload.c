/* Loads one of two plugins in turn, each at the place that the other one had, and has it allocate.
 *   heap_reload PLUGIN OTHER
 * Long enough each time that the stacks are published to the kernel before its end. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	for (int i = 0; i < 4 && argc > 2; i++) {
		void *plugin = dlopen(argv[1 + i % 2], RTLD_NOW);
		void *(*grab)(size_t) = plugin ? (void *(*)(size_t))dlsym(plugin, "grab") : 0;

		if (!grab) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		printf("%p\n", (void *)grab);
		for (int k = 0; k < 50000; k++)
			grab(10 + i % 2);
		dlclose(plugin);
	}
	return 0;
}
