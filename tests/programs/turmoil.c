/* Calls that fail, in part or as a whole, among calls that do not: by several threads and their children.
 *
 *   turmoil SEED THREADS ROUNDS OUT [plain|tight|crowded|shared]
 *
 *   plain    each thread works on blocks that are its own: most in a window of low addresses, where the kernel puts
 *            nothing by itself, so that it may leave holes there
 *   tight    the same with little more address space than is in use (RLIMIT_AS): much is refused with ENOMEM
 *   crowded  the same with nearly as many mappings as the kernel allows, so that nothing can be split
 *   shared   all threads work on one arena and take no notice of each other
 *
 * Each process, children too, copies its own /proc/self/maps to OUT.PID as the last thing that it does. It prints
 * how many calls failed, by error. Nothing checks what a call returned: only what is mapped at the end counts. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#define MSEAL 462

enum { PG = 4096, BLOCKS = 24, WINDOW_PAGES = 1024, ARENA_PAGES = 192, ERRORS = 134 };
#define WINDOWS 0x100000000000UL

/* A block may have parts of any kind, and holes if it is in the lane's window. */
typedef struct {
    uintptr_t at;
    size_t pages;
} block;

typedef struct {
    uint32_t s;
    int id, forks;
    block own[BLOCKS];
} lane;

static lane lanes[16];
static pthread_barrier_t gate;
static int rounds, lane_count, rw_file, ro_file, is_shared;
static const char *prefix;
static uintptr_t arena;
static unsigned long failed[ERRORS];

static uint32_t roll(lane *l, uint32_t n)
{
    l->s ^= l->s << 13;
    l->s ^= l->s >> 17;
    l->s ^= l->s << 5;
    return n ? (l->s >> 3) % n : 0;
}

static long did(long r)
{
    if (r == -1 && errno < ERRORS)
        __atomic_add_fetch(&failed[errno], 1, __ATOMIC_RELAXED);
    return r;
}

static uintptr_t map(uintptr_t at, size_t bytes, int prot, int flags, int fd, off_t off)
{
    uintptr_t p = (uintptr_t)mmap((void *)at, bytes, prot, flags, fd, off);
    did(p == (uintptr_t)-1 ? -1 : 0);
    return p;
}

static uintptr_t window(const lane *l) { return WINDOWS + (uintptr_t)l->id * ((uintptr_t)1 << 32); }

static int may_have_holes(const lane *l, block b)
{
    return is_shared || (b.at >= window(l) && b.at < window(l) + WINDOW_PAGES * PG);
}

static int some_prot(lane *l)
{
    static const int all[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE};
    return all[roll(l, 4)];
}

/* A fresh block in slot i; what was there before goes on existing, and is nobody's. */
static void fresh(lane *l, int i)
{
    size_t pages = 1 + roll(l, roll(l, 4) ? 24 : 600);
    uintptr_t in_window = window(l) + roll(l, WINDOW_PAGES - 1) * PG, p, at = 0;
    int fixed = 0;
    if (is_shared)
        return;
    if (in_window + pages * PG > window(l) + WINDOW_PAGES * PG)
        pages = 1;
    switch (roll(l, 6)) {
    case 0: break;
    case 1: at = in_window + roll(l, 2) * 1000; break; /* a wish: where it is taken, the kernel puts it elsewhere */
    case 2: at = in_window, fixed = MAP_FIXED_NOREPLACE; break;
    default: at = in_window, fixed = MAP_FIXED;
    }
    switch (roll(l, 6)) {
    case 0: p = map(at, pages * PG, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0); break;
    case 1: p = map(at, pages * PG, PROT_READ, MAP_PRIVATE | fixed, ro_file, (off_t)roll(l, 8) * PG); break;
    case 2: p = map(at, pages * PG, PROT_READ | PROT_WRITE, MAP_SHARED | fixed, rw_file, (off_t)roll(l, 99) * PG); break;
    case 3: p = map(at, pages * PG, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | fixed, -1, 0); break;
    default: p = map(at, pages * PG - roll(l, 100), some_prot(l), MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
    }
    if (p != (uintptr_t)-1)
        l->own[i] = (block){p, pages};
}

/* Part of a block: always inside of it. */
static block part(lane *l, block b)
{
    size_t from = roll(l, 3) ? roll(l, (uint32_t)b.pages) : 0;
    size_t n = roll(l, 3) ? 1 + roll(l, (uint32_t)(b.pages - from)) : b.pages - from;
    return (block){b.at + from * PG, n};
}

static void refused_maps(lane *l, block b)
{
    block q = part(l, b);
    switch (roll(l, 9)) {
    case 0: map(0, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); break;
    case 1: map(0, PG, PROT_READ, MAP_PRIVATE, 999, 0); break;
    case 2: map(0, PG, PROT_WRITE, MAP_SHARED, ro_file, 0); break;
    case 3: map(0, PG, PROT_READ, MAP_SHARED, rw_file, 123); break;
    case 4: map(0, (size_t)1 << 46, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); break;
    case 5: map(0, (size_t)-PG, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); break;
    case 6: map(q.at, q.pages * PG, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0); break;
    case 7: map(q.at, q.pages * PG, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ro_file, 0); break;
    default: map(q.at + 17, PG, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    }
}

static void over(lane *l, block b)
{
    block q = part(l, b);
    int prot = some_prot(l);
    switch (roll(l, may_have_holes(l, b) ? 4 : 3)) {
    case 0: map(q.at, q.pages * PG, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0); break;
    case 1: map(q.at, q.pages * PG, prot, MAP_SHARED | MAP_FIXED, rw_file, (off_t)roll(l, 3) * PG); break;
    case 2: map(q.at, q.pages * PG, prot & PROT_READ, MAP_PRIVATE | MAP_FIXED, ro_file, 0); break;
    default: /* into a hole of our own, or onto what is there */
        did(munmap((void *)q.at, q.pages * PG));
        if (is_shared)
            map(q.at, q.pages * PG, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        else
            map(0, q.pages * PG, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
}

static void move(lane *l, int i, int j)
{
    block b = l->own[i], q = part(l, b), t = l->own[j];
    void *at = (void *)q.at;
    size_t n = q.pages * PG;
    uintptr_t p = (uintptr_t)-1;
    /* Wherever it goes then, or stays: nobody's. */
    if (!may_have_holes(l, b))
        l->own[i].pages = 0;
    switch (roll(l, 16)) {
    case 0: mremap(at, n, n + PG, 0) == MAP_FAILED ? did(-1) : 0; break;                       /* mostly no space */
    case 1: p = (uintptr_t)mremap(at, n, n + roll(l, 40) * PG, MREMAP_MAYMOVE); break;
    case 2: p = (uintptr_t)mremap(at, n, PG, 0); break;                                        /* shrinks */
    case 3: p = (uintptr_t)mremap(at, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, at); break;         /* onto itself */
    case 4: p = (uintptr_t)mremap(at, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)(q.at + 1)); break;
    case 5: p = (uintptr_t)mremap(at, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)-(uintptr_t)(8 * PG)); break;
    case 6: p = (uintptr_t)mremap((void *)0x10000, n, 2 * n, MREMAP_MAYMOVE); break;           /* nothing there */
    case 7: p = (uintptr_t)mremap(at, n, n, MREMAP_MAYMOVE | MREMAP_DONTUNMAP); break;
    case 8: p = (uintptr_t)mremap(at, n, n + PG, MREMAP_MAYMOVE | MREMAP_DONTUNMAP); break;    /* EINVAL */
    case 9: p = (uintptr_t)mremap(at, 0, n, MREMAP_MAYMOVE); break;                            /* a copy, of shared ones */
    case 10: p = (uintptr_t)mremap(at, n, (size_t)1 << 45, MREMAP_MAYMOVE); break;
    case 11: p = (uintptr_t)mremap(at, n, n, MREMAP_FIXED, (void *)t.at); break;               /* without MAYMOVE */
    case 12: p = (uintptr_t)mremap(at, n + 40 * PG, n + 60 * PG, MREMAP_MAYMOVE); break;       /* past the end */
    case 13: /* onto what lies one page further: overlaps, unless it is one page */
        if (may_have_holes(l, b))
            p = (uintptr_t)mremap(at, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)(q.at + PG));
        break;
    default: /* onto another block: part of it, or all */
        if (i == j || !may_have_holes(l, t))
            return;
        if (t.pages < q.pages)
            n = t.pages * PG;
        p = (uintptr_t)mremap(at, n, n, MREMAP_MAYMOVE | MREMAP_FIXED | (roll(l, 3) ? 0 : MREMAP_DONTUNMAP),
                              (void *)t.at);
    }
    did(p == (uintptr_t)-1 ? -1 : 0);
}

static void guard(lane *l, block b)
{
    block q = part(l, b);
    int prot = some_prot(l);
    switch (roll(l, 8)) {
    case 0: did(mprotect((void *)(q.at + 1), PG, prot)); break;
    case 1: did(mprotect((void *)q.at, q.pages * PG, 0x40)); break;
    case 2: did(mprotect((void *)q.at, q.pages * PG, prot | PROT_GROWSDOWN)); break;
    case 3: did(syscall(SYS_pkey_mprotect, q.at, q.pages * PG, prot, 9)); break; /* a key that nobody has */
    default: did(mprotect((void *)q.at, q.pages * PG, prot));
    }
}

static void advise(lane *l, block b)
{
    static const int all[] = {MADV_DONTNEED, MADV_DONTFORK, MADV_DOFORK, MADV_NOHUGEPAGE, MADV_FREE, MADV_REMOVE, 77, 103};
    block q = part(l, b);
    did(madvise((void *)(q.at + (roll(l, 9) ? 0 : 3)), q.pages * PG, all[roll(l, 8)]));
}

static void unmap(lane *l, int i)
{
    block b = l->own[i];
    block q = part(l, b);
    if (!may_have_holes(l, b)) {
        q = b;
        l->own[i].pages = 0;
    }
    switch (roll(l, 6)) {
    case 0: did(munmap((void *)(q.at + 5), PG)); break;
    case 1: did(munmap((void *)q.at, 0)); break;
    case 2: did(munmap((void *)q.at, q.pages * PG - roll(l, PG))); break;
    default: did(munmap((void *)q.at, q.pages * PG));
    }
}

static void segment(lane *l, block b)
{
    size_t pages = 1 + roll(l, 5);
    int id = shmget(IPC_PRIVATE, pages * PG, IPC_CREAT | 0600);
    uintptr_t p = (uintptr_t)-1;
    if (id < 0)
        return;
    switch (roll(l, 5)) {
    case 0: p = (uintptr_t)shmat(id, (void *)b.at, 0); break;              /* there is something */
    case 1: p = (uintptr_t)shmat(id, (void *)(b.at + 9), SHM_REMAP); break; /* not a page's address */
    case 2: if (b.pages > 5 && may_have_holes(l, b)) p = (uintptr_t)shmat(id, (void *)b.at, SHM_REMAP); break;
    case 3: did(shmdt((void *)(b.at + PG))); break;                        /* mostly nothing of the kind */
    default:
        p = (uintptr_t)shmat(id, NULL, 0);
        if (p != (uintptr_t)-1 && roll(l, 2))
            did(shmdt((void *)p));
    }
    did(p == (uintptr_t)-1 ? -1 : 0);
    did(shmctl(id, IPC_RMID, NULL));
}

static void odd(lane *l, block b)
{
    static uintptr_t first;
    aio_context_t none = 0, taken = 1;
    switch (roll(l, 8)) {
    case 0: did(syscall(SYS_io_setup, 0, &none)); break;
    case 1: did(syscall(SYS_io_setup, 8, &taken)); break;          /* has to be 0 before */
    case 2: did(syscall(SYS_io_setup, 1u << 30, &none)); break;
    case 3: did(syscall(SYS_remap_file_pages, b.at, PG, 0, 0, 0)); break;
    case 4: did(prctl(0x53564d41, 0, b.at, b.pages * PG, "turmoil")); break;
    case 5: did(prctl(0x53564d41, 0, b.at + 1, PG, "turmoil")); break;
    case 6: /* the break is one for all: a failure here never says so in errno */
        if (l->id == 0) {
            uintptr_t now = (uintptr_t)syscall(SYS_brk, 0);
            if (!first)
                first = now;
            syscall(SYS_brk, roll(l, 3) ? first + roll(l, 50 * PG) : (uintptr_t)1 << 46);
        }
        break;
    default: did(syscall(MSEAL, b.at, PG, roll(l, 2) ? 0 : 7));
    }
}

/* System calls only: nothing is mapped between the read and the end. */
static void write_maps_and_end(void)
{
    static char text[12 << 20], name[512];
    size_t have = 0, done = 0;
    long n;
    int in, to;
    snprintf(name, sizeof name, "%s.%d", prefix, (int)getpid());
    in = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
    while ((n = syscall(SYS_read, in, text + have, sizeof text - have)) > 0)
        have += (size_t)n;
    to = (int)syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    while (done < have && (n = syscall(SYS_write, to, text + done, have - done)) > 0)
        done += (size_t)n;
    syscall(SYS_exit_group, have && done == have ? 0 : 70);
    __builtin_unreachable();
}

static void *brief(void *arg) { return arg; }

static void live(lane *l, int n);

static void descend(lane *l)
{
    int forks = l->forks;
    pid_t pid;
    l->forks = 0;
    if (roll(l, 4)) {
        pid = fork();
        if (pid == 0) {
            live(l, 15);
            write_maps_and_end();
        }
    } else {
        pid = vfork(); /* the child works on what is its parent's, too */
        if (pid == 0) {
            live(l, 5);
            _exit(0);
        }
    }
    if (pid > 0)
        waitpid(pid, NULL, 0);
    l->forks = forks;
}

static void live(lane *l, int n)
{
    for (int k = 1; k <= n; k++) {
        int i = (int)roll(l, BLOCKS), j = (int)roll(l, BLOCKS);
        block b;
        if (is_shared)
            l->own[i] = (block){arena + roll(l, ARENA_PAGES / 2) * PG, 1 + roll(l, ARENA_PAGES / 2)};
        if (!l->own[i].pages)
            fresh(l, i);
        b = l->own[i];
        if (!b.pages)
            continue;
        if (l->forks && k % 60 == 0)
            descend(l);
        switch (roll(l, 18)) {
        case 0: case 1: case 2: fresh(l, i); break;
        case 3: case 4: over(l, b); break;
        case 5: case 6: unmap(l, i); break;
        case 7: case 8: guard(l, b); break;
        case 9: advise(l, b); break;
        case 10: case 11: case 12: if (l->own[j].pages) move(l, i, j); break;
        case 13: case 14: refused_maps(l, b); break;
        case 15: segment(l, b); break;
        case 16: odd(l, b); break;
        default:
            if (l->forks && roll(l, 2)) {
                pthread_t t;
                if (!pthread_create(&t, NULL, brief, NULL))
                    pthread_join(t, NULL);
            }
        }
    }
}

static void *whole_lane(void *arg)
{
    pthread_barrier_wait(&gate);
    live(arg, rounds);
    return NULL;
}

static __attribute__((noinline)) void grow_stack(void)
{
    volatile char deep[256 << 10];
    for (size_t i = 0; i < sizeof deep; i += PG)
        deep[i] = 1;
}

/* Every other page with other rights, until few more are allowed. */
static void crowd(void)
{
    long most = 65530;
    FILE *f = fopen("/proc/sys/vm/max_map_count", "r");
    if (f && fscanf(f, "%ld", &most) != 1)
        most = 65530;
    if (f)
        fclose(f);
    if (most > 70000)
        return;
    uintptr_t p = map(0, (size_t)most * PG, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (long i = 1; i < most - 300; i += 2)
        if (mprotect((void *)(p + (size_t)i * PG), PG, PROT_NONE))
            break;
}

int main(int argc, char **argv)
{
    pthread_t t[16];
    const char *mode = argc > 5 ? argv[5] : "plain";
    if (argc < 5)
        return 64;
    lane_count = atoi(argv[2]);
    rounds = atoi(argv[3]);
    prefix = argv[4];
    is_shared = !strcmp(mode, "shared");
    rw_file = memfd_create("turmoil", MFD_CLOEXEC);
    ro_file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (lane_count < 1 || lane_count > 16 || rw_file < 0 || ro_file < 0 || ftruncate(rw_file, 40 * PG))
        return 65;
    grow_stack();
    arena = map(WINDOWS - ((uintptr_t)1 << 32), ARENA_PAGES * PG, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (!strcmp(mode, "crowded"))
        crowd();
    pthread_barrier_init(&gate, NULL, (unsigned)lane_count);
    for (int i = 0; i < lane_count; i++) {
        lanes[i].s = 2654435761u * (uint32_t)(atoi(argv[1]) * 16 + i + 1);
        lanes[i].id = i;
        lanes[i].forks = strcmp(mode, "crowded") != 0;
        if (pthread_create(&t[i], NULL, whole_lane, &lanes[i]))
            return 66;
    }
    if (!strcmp(mode, "tight")) {
        unsigned long pages = 0;
        FILE *f = fopen("/proc/self/statm", "r");
        if (!f || fscanf(f, "%lu", &pages) != 1)
            return 67;
        fclose(f);
        setrlimit(RLIMIT_AS, &(struct rlimit){(pages + 1000) * PG, (pages + 1000) * PG});
    }
    for (int i = 0; i < lane_count; i++)
        pthread_join(t[i], NULL);
    for (int i = 1; i < ERRORS; i++)
        if (failed[i])
            printf("%s %lu\n", strerrorname_np(i), failed[i]);
    fflush(stdout);
    write_maps_and_end();
}
