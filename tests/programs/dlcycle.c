/* Loads a plugin, lets it map 3 MiB, and unloads it, N times; the memory outlives the code that
 * requested it.   dlcycle PLUGIN N */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

int main(int argc, char **argv)
{
    int n = argc > 2 ? atoi(argv[2]) : 5;
    for (int i = 0; i < n; i++) {
        void *h = dlopen(argv[1], RTLD_NOW);
        void *(*map)(size_t) = h ? (void *(*)(size_t))dlsym(h, "plugin_map") : NULL;
        if (!map) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        if (map(3 << 20) == MAP_FAILED || dlclose(h))
            return 2;
    }
    return 0;
}
