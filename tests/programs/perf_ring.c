// Maps what its driver keeps from forks (VM_DONTCOPY), and advice about forks that goes with a mapping
// when it moves and grows. Each child ends without a call of its own, or after some, or has a child.
// Exit status 77: no perf events here.
#define _GNU_SOURCE
#include <linux/perf_event.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define RING (17 * PAGE)

static void child(int which) {
    if (which == 1) mmap(NULL, RING, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (which == 2) {
        if (!fork()) _exit(0);
        wait(NULL);
    }
    _exit(0);
}

static void fork_three(void) {
    for (int i = 0; i < 3; i++) {
        if (!fork()) child(i);
        wait(NULL);
    }
}

int main(void) {
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.type = PERF_TYPE_SOFTWARE;
    attr.size = sizeof attr;
    attr.config = PERF_COUNT_SW_CPU_CLOCK;
    attr.sample_period = 1000000;
    attr.exclude_kernel = 1;
    attr.disabled = 1;
    int fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
    if (fd < 0) return 77;
    void *ring = mmap(NULL, RING, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (ring == MAP_FAILED) return 77;
    fork_three();
    char *kept = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (madvise(kept, 4 * PAGE, MADV_DONTFORK)) return 1;
    // A neighbour below the next mapping keeps it from growing where it is.
    kept = mremap(kept, 4 * PAGE, 64 * PAGE, MREMAP_MAYMOVE);
    if (kept == MAP_FAILED) return 1;
    fork_three();
    munmap(ring, RING);
    fork_three();
    return 0;
}
