/* Mappings that the kernel names, one of each kind that this machine allows: prints a word for each it
   could make, then "ready", and waits for its standard input. Sizes are all different. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/bpf.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KIB 1024ul
#define RW (PROT_READ | PROT_WRITE)

static void made(const char *what, void *at)
{
    if (at != MAP_FAILED) puts(what);
}

static void io_uring(void)
{
    struct io_uring_params p;
    memset(&p, 0, sizeof p);
    int fd = syscall(SYS_io_uring_setup, 4096, &p);
    if (fd < 0) return;
    made("io-uring", mmap(0, 132 * KIB, RW, MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_SQ_RING));
    mmap(0, p.sq_entries * sizeof(struct io_uring_sqe), RW, MAP_SHARED, fd, IORING_OFF_SQES);
}

static void perf(void)
{
    struct perf_event_attr a;
    memset(&a, 0, sizeof a);
    a.size = sizeof a;
    a.type = PERF_TYPE_SOFTWARE;
    a.config = PERF_COUNT_SW_DUMMY;
    int fd = syscall(SYS_perf_event_open, &a, 0, -1, -1, 0);
    if (fd >= 0) made("perf", mmap(0, 36 * KIB, RW, MAP_SHARED, fd, 0));
}

static void bpf(void)
{
    union bpf_attr a;
    memset(&a, 0, sizeof a);
    a.map_type = BPF_MAP_TYPE_ARRAY;
    a.key_size = 4;
    a.value_size = 4096;
    a.max_entries = 48;
    a.map_flags = BPF_F_MMAPABLE;
    int fd = syscall(SYS_bpf, BPF_MAP_CREATE, &a, sizeof a);
    if (fd >= 0) made("bpf", mmap(0, 192 * KIB, RW, MAP_SHARED, fd, 0));
}

static int memory_file(const char *name, unsigned flags, long size)
{
    int fd = memfd_create(name, flags);
    return fd < 0 || ftruncate(fd, size) ? -1 : fd;
}

int main(void)
{
    io_uring();
    perf();
    bpf();
    aio_context_t context = 0;
    if (!syscall(SYS_io_setup, 128, &context)) puts("aio");

    char *cache = mmap(0, 5120 * KIB, RW, MAP_SHARED, memory_file("picture cache", 0, 5120 * KIB), 0);
    made("memfd", cache);
    cache[0] = 1;
    made("memfd-huge", mmap(0, 4096 * KIB, RW, MAP_SHARED, memory_file("big", MFD_HUGETLB, 4096 * KIB), 0));
    char *huge = mmap(0, 8192 * KIB, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    made("hugetlb", huge);
    if (huge != MAP_FAILED) huge[0] = 1; /* one page of 2 MiB is in use */

    char *named = mmap(0, 3072 * KIB, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    /* shows a tracer the name also where the kernel refuses it */
    puts(prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, named, 3072 * KIB, "tile store") ? "name-refused" : "named");

    made("shared", mmap(0, 1536 * KIB, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    char path[64];
    snprintf(path, sizeof path, "/vmaudit-test-%d", getpid());
    int fd = shm_open(path, O_CREAT | O_RDWR, 0600);
    shm_unlink(path);
    if (fd >= 0 && !ftruncate(fd, 2560 * KIB)) made("posix", mmap(0, 2560 * KIB, RW, MAP_SHARED, fd, 0));
    int id = shmget(IPC_PRIVATE, 3584 * KIB, IPC_CREAT | 0600);
    if (id >= 0) {
        made("sysv", shmat(id, 0, 0));
        shmctl(id, IPC_RMID, 0);
    }
    int zero = open("/dev/zero", O_RDWR);
    made("dev-zero", mmap(0, 640 * KIB, RW, MAP_PRIVATE, zero, 0));

    puts("ready");
    fflush(stdout);
    char byte;
    return read(0, &byte, 1) < 0;
}
