/* Every traced call once with each of its flags, known and unknown, obeyed and refused: its arguments
 * have to read as strace's. One thread, no output. Nothing depends on the result of a call that may
 * be refused. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
#define PR_SET_VMA_ 0x53564d41
#define HUGE_2M (21 << 26)

static void maps(void)
{
    char *low = (char *)0x10000000;
    mmap(low, 4096, 0x40, MAP_SHARED | MAP_ANONYMOUS | MAP_32BIT | MAP_FIXED_NOREPLACE, -1, 0x3000);
    mmap(low, 4096, 0x47 | PROT_GROWSDOWN | PROT_GROWSUP | 8 /* PROT_SEM */,
         MAP_SHARED_VALIDATE | MAP_ANONYMOUS | MAP_SYNC | 0x40000000 | 0x8000000, 7, 0);
    mmap(0, 2 << 20, 3, ANON | MAP_HUGETLB | HUGE_2M, -1, 0);
    mmap(0, 2 << 20, 3, MAP_ANONYMOUS, -1, 0);
    mmap(0, 2 << 20, 3, 8 | MAP_ANONYMOUS, -1, 0);
    mmap(0, 2 << 20, 3, 0x80 | MAP_PRIVATE, -1, 0);
    mmap(low, 8192, PROT_NONE, ANON | MAP_FIXED, -1, 0);
}

static void advice(char *p)
{
    for (int i = -1; i < 28; i++)
        madvise(p, 0, i);
    for (int i = 100; i < 104; i++)
        madvise(p, 0, i);
    struct iovec one = {p, 4096};
    syscall(SYS_process_madvise, -1, &one, 1, MADV_PAGEOUT, 0);
}

static void segments(void)
{
    int id = shmget(IPC_PRIVATE, 8192, 0600);
    char *first = shmat(id, 0, 0), *second = shmat(id, 0, SHM_RDONLY | SHM_RND | 0100000 /* SHM_EXEC */);
    shmat(id, second, SHM_REMAP | 1);
    shmdt(first);
    shmdt(0);
    shmctl(id, IPC_RMID, 0);
}

int main(void)
{
    char *p = mmap(0, 1 << 20, PROT_READ | PROT_WRITE,
                   ANON | MAP_NORESERVE | MAP_POPULATE | MAP_STACK | MAP_LOCKED | MAP_NONBLOCK | MAP_DENYWRITE |
                       MAP_EXECUTABLE | MAP_GROWSDOWN,
                   -1, 0);
    maps();
    mprotect(p, 4096, 0x1000);
    mprotect(p + 1, 4096, PROT_NONE);
    syscall(SYS_pkey_mprotect, p, 4096, 1, -1);
    syscall(SYS_pkey_mprotect, p, 4096, 1, 3);
    advice(p);
    mremap(p, 4096, 8192, 0);
    mremap(p, 4096, 8192, MREMAP_MAYMOVE);
    mremap(p, 4096, 4096, 7, 0x20000000);
    mremap(p, 4096, 8192, MREMAP_MAYMOVE | MREMAP_FIXED, p + 40960);
    mremap(p, 4096, 8192, 0x18);
    mremap(p + 8192, 4096, 4096, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
    segments();
    syscall(SYS_remap_file_pages, p, 4096, 0, 0, 0);
    syscall(SYS_remap_file_pages, p, 4096, 1, 2, MAP_NONBLOCK);
    unsigned long ring = 0;
    syscall(SYS_io_setup, 128, &ring);
    syscall(SYS_io_setup, 0, &ring);
    syscall(SYS_io_setup, 0, 0);
    syscall(SYS_io_destroy, ring);
    syscall(SYS_io_destroy, ring);
    ring = 0;
    syscall(SYS_io_setup, 64, &ring);
    prctl(PR_SET_VMA_, 0, p + 16384, 4096, "a \"name\"\n");
    prctl(PR_SET_VMA_, 0, p + 16384, 4096, 0);
    prctl(PR_SET_MM, PR_SET_MM_START_BRK, p, 0, 0);
    prctl(PR_SET_MM, 99, p, 0, 0);
    syscall(SYS_brk, 0);
    syscall(SYS_brk, 1);
    sbrk(4096);
    munmap(p, 4096);
    munmap(p + 1, 4096);
    munmap(0, 0);
    return 0;
}
