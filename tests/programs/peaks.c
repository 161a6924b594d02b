/* Peaks of one thread, each of another kind. Writes VmPeak as the kernel has it before it leaves.
 *   peaks mmap | stack | remap | fixed | brk | fork | exec */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)

static char *map(size_t len)
{
    char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        _exit(9);
    return p;
}

/* Touches `left` KiB of stack, without a call. */
static __attribute__((noinline)) int deep(int left)
{
    volatile char page[1024];
    page[0] = (char)left;
    return left > 0 ? deep(left - 1) + page[0] : 0;
}

static void report(const char *what)
{
    char buffer[4096], *at;
    int fd = open("/proc/self/status", O_RDONLY);
    ssize_t got = read(fd, buffer, sizeof(buffer) - 1);
    close(fd);
    buffer[got > 0 ? got : 0] = 0;
    at = strstr(buffer, "VmPeak:");
    dprintf(1, "%s %d %ld\n", what, getpid(), at ? atol(at + 7) * 1024 : 0);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    /* The heap is there before anything is measured. */
    char *volatile first = malloc(1);
    free(first);
    if (!strcmp(mode, "mmap")) {
        char *a = map(64 * MIB), *b = map(32 * MIB);
        munmap(a, 64 * MIB);
        a = map(16 * MIB);
        munmap(a, 16 * MIB);
        munmap(b, 32 * MIB);
    } else if (!strcmp(mode, "stack")) {
        /* The largest moment is reached by the stack alone, between two calls. */
        char *a = map(64 * MIB);
        deep(3000);
        munmap(a, 64 * MIB);
    } else if (!strcmp(mode, "stack-end")) {
        /* The same, but the growth is the last thing that happens. */
        deep(3000);
    } else if (!strcmp(mode, "remap")) {
        char *a = map(8 * MIB);
        a = mremap(a, 8 * MIB, 48 * MIB, MREMAP_MAYMOVE);
        a = mremap(a, 48 * MIB, 4 * MIB, 0);
        char *to = map(24 * MIB);
        a = mremap(a, 4 * MIB, 16 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to);
        munmap(to, 24 * MIB);
    } else if (!strcmp(mode, "fixed")) {
        char *a = map(40 * MIB);
        for (int i = 0; i < 5; i++)
            mmap(a + i * MIB, 8 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        munmap(a, 40 * MIB);
    } else if (!strcmp(mode, "brk")) {
        if (sbrk(32 * MIB) == (void *)-1 || sbrk(-(long)(32 * MIB)) == (void *)-1)
            return 9;
    } else if (!strcmp(mode, "fork")) {
        /* The child begins with what its parent has now, not with its peak. */
        char *a = map(64 * MIB), *b = map(16 * MIB);
        munmap(a, 64 * MIB);
        pid_t child = fork();
        if (child == 0) {
            munmap(b, 16 * MIB);
            report("child");
            _exit(0);
        }
        waitpid(child, NULL, 0);
        munmap(b, 16 * MIB);
    } else if (!strcmp(mode, "exec")) {
        /* A new program has a peak of its own. */
        char *a = map(64 * MIB);
        munmap(a, 64 * MIB);
        execl("/proc/self/exe", argv[0], "brk", (char *)NULL);
        return 9;
    } else if (!strcmp(mode, "vfork")) {
        /* The child uses its parent's address space until it executes something. */
        pid_t child = vfork();
        if (child == 0) {
            char *a = map(64 * MIB);
            munmap(a, 64 * MIB);
            execl("/proc/self/exe", argv[0], "brk", (char *)NULL);
            _exit(9);
        }
        waitpid(child, NULL, 0);
    }
    report(mode);
    return 0;
}
