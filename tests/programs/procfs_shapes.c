/* One process with every kind of memory whose residency is easily got wrong. Prints "ready"
 * when all is touched, then waits for its standard input to end.
 *   cc -O1 -pthread -o procfs_shapes procfs_shapes.c
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB (1UL << 20)
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

static volatile char sink;

static void touch(char *at, size_t len, size_t step) {
    for (size_t i = 0; i < len; i += step) at[i] = 1;
}

static void read_only(char *at, size_t len) {
    for (size_t i = 0; i < len; i += 4096) sink = at[i];
}

static char *anon(size_t len, int flags) {
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (at == MAP_FAILED) exit(3);
    return at;
}

/* 2 MiB aligned, 2 * `units` MiB long */
static char *aligned(size_t units) {
    char *at = anon((units + 1) * 2 * MIB, MAP_NORESERVE);
    char *start = (char *)(((unsigned long)at + 2 * MIB - 1) & ~(2 * MIB - 1));
    return start;
}

static void *arena_thread(void *arg) {
    prctl(PR_SET_NAME, "arena \377 name");
    char *volatile block = malloc(1000);
    block[0] = 1;
    /* below the mmap threshold, 80 MB in all: more than one heap of 64 MiB holds */
    for (int i = 0; i < 800; i++) block = malloc(100000);
    pthread_barrier_wait(arg);
    for (;;) pause();
    return NULL;
}

int main(void) {
    /* every other page */
    touch(anon(4 * MIB, 0), 4 * MIB, 8192);
    /* pages of zeros only: in no Rss */
    read_only(anon(MIB, 0), MIB);
    /* huge zero page and a huge page */
    char *huge = aligned(3);
    madvise(huge, 6 * MIB, MADV_HUGEPAGE);
    read_only(huge, 2 * MIB);
    touch(huge + 2 * MIB, 2 * MIB, 4096);
    /* shared anonymous, and a huge page of it if the machine allows */
    char *shared = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    madvise(shared, 4 * MIB, MADV_HUGEPAGE);
    touch(shared + 4096, 3 * MIB, 12288);
    read_only(shared, 64 * 1024);
    /* memfd with an odd name, private and shared mapping of the same pages */
    int fd = memfd_create("odd \n\377 name", 0);
    if (ftruncate(fd, MIB)) exit(4);
    char *memfd = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    touch(memfd, MIB / 2, 4096);
    char *copy = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    read_only(copy, MIB);
    touch(copy, 40960, 8192);
    /* a file, deleted, partly read, partly copied on write */
    char name[] = "/tmp/vmaudit two words XXXXXX";
    int file = mkstemp(name);
    if (ftruncate(file, 300000)) exit(5);
    char *mapped = mmap(NULL, 300000, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    read_only(mapped, 100000);
    touch(mapped + 200000, 50000, 4096);
    unlink(name);
    /* SysV */
    int id = shmget(IPC_PRIVATE, MIB, 0600);
    char *sysv = shmat(id, NULL, 0);
    touch(sysv, MIB / 4, 4096);
    shmctl(id, IPC_RMID, NULL);
    /* purged, inaccessible but resident, and guard pages */
    char *purged = anon(MIB, 0);
    touch(purged, MIB, 4096);
    madvise(purged, MIB / 2, MADV_DONTNEED);
    char *closed = anon(MIB, 0);
    touch(closed, MIB, 4096);
    mprotect(closed, MIB, PROT_NONE);
    char *guarded = anon(MIB, 0);
    touch(guarded, MIB, 4096);
    madvise(guarded + 65536, 65536, MADV_GUARD_INSTALL);
    /* hugetlb, where the machine has such pages: anonymous, and a file of it */
    char *tlb = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (tlb != MAP_FAILED) {
        touch(tlb, 2 * MIB, 4096);
        int tlb_fd = memfd_create("tlb", MFD_HUGETLB);
        if (ftruncate(tlb_fd, 2 * MIB)) exit(6);
        char *tlb_file = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, tlb_fd, 0);
        if (tlb_file != MAP_FAILED) touch(tlb_file, 2 * MIB, 4096);
        puts("hugetlb");
    }
    /* what the kernel maps or fills itself: rings of aio, io_uring and perf, where allowed */
    aio_context_t context = 0;
    syscall(SYS_io_setup, 128, &context);
    struct io_uring_params ring = {0};
    int uring = syscall(SYS_io_uring_setup, 64, &ring);
    if (uring >= 0) {
        char *sqes = mmap(NULL, 64 * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED, uring, IORING_OFF_SQES);
        if (sqes != MAP_FAILED) touch(sqes, 4096, 4096);
    }
    struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE, .size = sizeof attr, .config = PERF_COUNT_SW_TASK_CLOCK, .exclude_kernel = 1};
    int perf = syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
    if (perf >= 0) {
        char *rings = mmap(NULL, 9 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, perf, 0);
        if (rings != MAP_FAILED) read_only(rings, 9 * 4096);
    }
    /* a thread with a glibc arena */
    pthread_barrier_t both;
    pthread_t thread;
    pthread_barrier_init(&both, NULL, 2);
    pthread_create(&thread, NULL, arena_thread, &both);
    pthread_barrier_wait(&both);
    puts("ready");
    fflush(stdout);
    while (read(0, (char *)&sink, 1) > 0) {}
    return 0;
}
