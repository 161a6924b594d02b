/* The life of one page, every step of which is known: reserved, made writable, purged a hundred
 * times, unmapped and reserved again fifty times, protected, refused, unmapped, given to a library,
 * moved away and back, inherited by a child that makes it writable.
 *
 *   address_life      the page is at 0x700000000000 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define AT ((char *)0x700000000000)
#define LEN (1 << 20)

static void reserve(void)
{
    mmap(AT, LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

static void use(void)
{
    mprotect(AT, 65536, PROT_READ | PROT_WRITE);
    memset(AT, 1, 65536);
}

static void purge(void)
{
    madvise(AT, 65536, MADV_DONTNEED);
}

int main(void)
{
    reserve();
    use();
    for (int i = 0; i < 100; i++)
        purge();
    for (int i = 0; i < 50; i++) {
        munmap(AT, LEN);
        reserve();
    }
    use();
    mprotect(AT, 4096, PROT_READ | PROT_EXEC);
    munmap(AT, LEN);
    dlopen("libm.so.6", RTLD_NOW);
    mmap(AT, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    mmap(AT, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    mremap(AT, 4096, 8192, MREMAP_MAYMOVE | MREMAP_FIXED, AT + LEN);
    mremap(AT + LEN, 8192, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, AT);
    if (fork() == 0) {
        mprotect(AT, 4096, PROT_READ | PROT_WRITE);
        _exit(3);
    }
    wait(0);
    return 0;
}
