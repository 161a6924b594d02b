/* A plugin that maps memory from inside itself, through a call chain of its own. */
#include <stddef.h>
#include <sys/mman.h>

__attribute__((noinline)) static void *plugin_inner(size_t len)
{
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    __asm__ volatile("" ::: "memory");
    return p;
}

void *plugin_map(size_t len)
{
    void *p = plugin_inner(len);
    __asm__ volatile("" ::: "memory");
    return p;
}
