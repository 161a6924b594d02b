/* A library with functions that a runtime calls: each maps 48 MiB itself. Node.js calls the first when it loads it, the JVM
 * the second, as `MapsInside.map`. */
#include <stdlib.h>
#include <sys/mman.h>

static void map(void)
{
    char *p = mmap(NULL, 48 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        abort();
    p[3] = 1;
}

void *napi_register_module_v1(void *env, void *exports)
{
    (void)env;
    map();
    return exports;
}

void Java_MapsInside_map(void *env, void *class)
{
    (void)env, (void)class;
    map();
}
