/* Random address-space work by several threads and their children, then the truth about it.
 *
 *   churn SEED THREADS ITERATIONS OUT [normal|leaf|steps|exec|thread-exec|endless]
 *
 * Each thread works on ranges that it alone owns, so every call's effect is determined by the
 * calls before it, whatever the interleaving. At the end the program, and each child that it
 * forked, copies its own /proc/self/maps to OUT.PID with raw system calls only (nothing is mapped
 * between that read and exit_group). An auditor's last state has to be that file.
 *
 * Left out on purpose: calls that fail half way (mprotect over a range whose second half refuses,
 * mremap that unmaps its target and then fails). Their effect cannot be derived from the result.
 *
 *   normal       all of it              leaf         no fork, no exec
 *   steps        as leaf; before each quarter and after the last one it says STEP and waits for a byte
 *   exec         at the end, main becomes `churn … leaf`
 *   thread-exec  a thread that is not the first one does so while the others go on
 *   endless      as normal, for any number of iterations; says READY when all threads work */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define MAX_THREADS 7 /* below glibc's limit of arenas, so that no thread uses brk behind our back */
#define MAX_RANGES 48

enum { ANON, RESERVED, SHARED_ANON, FILE_SHARED, FILE_PRIVATE, OTHER };

struct range {
    char *start;
    size_t pages;
    int kind;
    int whole;  /* made by one call and never divided: one VMA (or part of one), so mremap works */
    int nofork; /* MADV_DONTFORK was used somewhere in it: a child does not have it */
};

struct worker {
    uint64_t rng;
    int index, count, may_fork, exec_at;
    aio_context_t ring;
    struct range r[MAX_RANGES];
};

static struct worker workers[MAX_THREADS];
static pthread_barrier_t started;
static pthread_mutex_t brk_lock = PTHREAD_MUTEX_INITIALIZER;
static char maps_buffer[8 << 20];
static int threads, iterations, memfd, exefd;
static unsigned long seed;
static const char *out, *mode, *self;
static int endless; /* no malloc: some time an arena gives up and takes to brk, which is ours */
static int steps;
static int single; /* in a forked child there is nobody to lock against */

static uint64_t next(struct worker *w)
{
    uint64_t z = (w->rng += 0x9e3779b97f4a7c15UL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9UL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebUL;
    return z ^ (z >> 31);
}

static size_t below(struct worker *w, size_t n) { return n ? next(w) % n : 0; }

static void add(struct worker *w, char *start, size_t pages, int kind, int whole, int nofork)
{
    if (pages)
        w->r[w->count++] = (struct range){start, pages, kind, whole, nofork};
}

static void drop(struct worker *w, int i) { w->r[i] = w->r[--w->count]; }

/* Maps something new somewhere. */
static void op_map(struct worker *w)
{
    size_t pages = 1 + below(w, below(w, 3) ? 16 : 600);
    int kind = below(w, 5), prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS, fd = -1;
    off_t offset = 0;
    if (w->count + 4 > MAX_RANGES)
        return;
    if (kind == RESERVED) {
        prot = PROT_NONE;
        flags |= MAP_NORESERVE;
        pages *= 32;
    } else if (kind == SHARED_ANON) {
        flags = MAP_SHARED | MAP_ANONYMOUS;
    } else if (kind == FILE_SHARED || kind == FILE_PRIVATE) {
        flags = kind == FILE_SHARED ? MAP_SHARED : MAP_PRIVATE;
        fd = kind == FILE_PRIVATE && below(w, 2) ? exefd : memfd;
        offset = (off_t)(below(w, 3) * PAGE);
        prot = fd == exefd ? PROT_READ : prot;
    }
    char *p = mmap(NULL, pages * PAGE, prot, flags, fd, offset);
    if (p == MAP_FAILED)
        return;
    if ((kind == ANON || kind == SHARED_ANON) && below(w, 2))
        p[below(w, pages) * PAGE] = 1;
    add(w, p, pages, kind, 1, 0);
}

/* As malloc's arenas do: reserve twice as much, keep an aligned half. */
static void op_trim(struct worker *w)
{
    size_t half = (size_t)2 << 20;
    if (w->count + 4 > MAX_RANGES)
        return;
    char *p = mmap(NULL, 2 * half, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return;
    char *base = (char *)(((uintptr_t)p + half - 1) & ~(half - 1));
    if (base != p)
        munmap(p, (size_t)(base - p));
    munmap(base + half, half - (size_t)(base - p));
    mprotect(base, (1 + below(w, 32)) * PAGE, PROT_READ | PROT_WRITE);
    add(w, base, half / PAGE, RESERVED, 0, 0);
}

static void op_unmap(struct worker *w, int i)
{
    struct range r = w->r[i];
    size_t from = below(w, 2) ? 0 : below(w, r.pages), n = below(w, 2) ? r.pages - from : 1 + below(w, r.pages - from);
    if (w->count + 2 > MAX_RANGES || munmap(r.start + from * PAGE, n * PAGE - below(w, PAGE)))
        return;
    drop(w, i);
    add(w, r.start, from, r.kind, r.whole, r.nofork);
    add(w, r.start + (from + n) * PAGE, r.pages - from - n, r.kind, r.whole, r.nofork);
}

static void op_protect(struct worker *w, int i)
{
    static const int prots[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE | PROT_EXEC};
    struct range *r = &w->r[i];
    int exec_too = r->whole && r->kind <= RESERVED;
    size_t from = below(w, r->pages), n = 1 + below(w, r->pages - from);
    int prot = prots[below(w, exec_too ? 4 : 3)];
    r->whole = 0;
    if (below(w, 6))
        mprotect(r->start + from * PAGE, n * PAGE, prot);
    else
        syscall(SYS_pkey_mprotect, r->start + from * PAGE, n * PAGE, prot, -1);
}

static void op_advise(struct worker *w, int i)
{
    static const int advice[] = {MADV_DONTNEED, MADV_FREE,     MADV_WILLNEED, MADV_NOHUGEPAGE, MADV_HUGEPAGE, MADV_DONTDUMP,
                                 MADV_DONTFORK, MADV_MERGEABLE, MADV_REMOVE,   102 /* GUARD_INSTALL */, 103 /* _REMOVE */, 20 /* COLD */};
    struct range *r = &w->r[i];
    size_t from = below(w, r->pages), n = 1 + below(w, r->pages - from);
    int a = advice[below(w, sizeof advice / sizeof *advice)];
    r->whole = 0;
    r->nofork |= a == MADV_DONTFORK;
    madvise(r->start + from * PAGE, n * PAGE, a);
}

/* MAP_FIXED over part of a range of our own; NOREPLACE there has to fail. */
static void op_fixed(struct worker *w, int i)
{
    struct range *r = &w->r[i];
    size_t from = below(w, r->pages), n = 1 + below(w, r->pages - from);
    char *at = r->start + from * PAGE;
    int prot = below(w, 2) ? PROT_NONE : PROT_READ | PROT_WRITE;
    if (!below(w, 5)) {
        mmap(at, n * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        return;
    }
    r->whole = 0;
    if (r->kind < FILE_SHARED)
        r->kind = OTHER;
    if (below(w, 3))
        mmap(at, n * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    else
        mmap(at, n * PAGE, prot, MAP_SHARED | MAP_FIXED, memfd, (off_t)(below(w, 4) * PAGE));
}

static void op_remap(struct worker *w, int i)
{
    struct range *r = &w->r[i];
    size_t pages = below(w, 2) ? 1 + below(w, r->pages) : r->pages + below(w, 64);
    int target = (int)below(w, (size_t)w->count);
    char *p;
    if (!r->whole || w->count + 2 > MAX_RANGES)
        return;
    switch (below(w, 4)) {
    case 0: /* only in place: may be refused */
        p = mremap(r->start, r->pages * PAGE, pages * PAGE, 0);
        break;
    case 1: /* moves, and leaves the old range mapped and empty */
        p = r->kind == ANON ? mremap(r->start, r->pages * PAGE, r->pages * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP) : MAP_FAILED;
        if (p != MAP_FAILED)
            add(w, p, r->pages, r->kind, 1, r->nofork);
        return;
    case 2: /* onto the start of another range of our own */
        if (target == i || w->r[target].pages < r->pages || w->r[target].nofork != r->nofork)
            return;
        p = mremap(r->start, r->pages * PAGE, r->pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, w->r[target].start);
        if (p == MAP_FAILED) {
            drop(w, target); /* it may be unmapped now, and be another thread's soon */
            return;
        }
        w->r[target].whole = 0;
        w->r[target].kind = OTHER;
        drop(w, i);
        return;
    default:
        p = mremap(r->start, r->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    }
    if (p == MAP_FAILED)
        return;
    r->start = p;
    r->pages = pages;
}

static void op_brk(struct worker *w)
{
    static uintptr_t floor_; /* below it lies what malloc took before the threads began */
    if (!single)
        pthread_mutex_lock(&brk_lock);
    uintptr_t now = (uintptr_t)syscall(SYS_brk, 0);
    if (!floor_)
        floor_ = now;
    uintptr_t target = below(w, 3) || now == floor_ ? now + 1 + below(w, 40 * PAGE) : floor_ + below(w, now - floor_);
    syscall(SYS_brk, target);
    if (!single)
        pthread_mutex_unlock(&brk_lock);
}

static void op_shm(struct worker *w, int i)
{
    size_t pages = 1 + below(w, 8);
    struct range *r = i < w->count ? &w->r[i] : NULL;
    int id = shmget(IPC_PRIVATE, pages * PAGE - below(w, 3), IPC_CREAT | 0600);
    if (id < 0)
        return;
    if (r && r->pages > pages && below(w, 2)) {
        if (shmat(id, r->start + below(w, r->pages - pages) * PAGE, SHM_REMAP) != (void *)-1)
            r->whole = 0, r->kind = OTHER;
    } else {
        char *p = shmat(id, NULL, below(w, 2) ? SHM_RDONLY : 0);
        if (p != (void *)-1 && below(w, 2))
            shmdt(p);
        else if (p != (void *)-1 && pages > 2 && below(w, 2))
            munmap(p + PAGE, PAGE), shmdt(p); /* detaches both pieces */
    }
    shmctl(id, IPC_RMID, NULL);
}

static void op_name(struct worker *w, int i)
{
    prctl(0x53564d41 /* PR_SET_VMA */, 0, w->r[i].start, w->r[i].pages * PAGE, "churn");
}

static void *short_thread(void *arg)
{
    if (endless)
        return arg;
    void *p = malloc(5000);
    memset(p, 1, 5000);
    free(p);
    return arg;
}

static void op_malloc(struct worker *w)
{
    if (endless)
        return;
    char *a = malloc(1 + below(w, 400000)), *b = malloc(1 + below(w, 3000));
    if (a)
        a[0] = 1;
    free(below(w, 2) ? a : NULL);
    free(b);
}

static void op_thread(void)
{
    pthread_t t;
    if (!single && !pthread_create(&t, NULL, short_thread, NULL))
        pthread_join(t, NULL);
}

/* Raw system calls only from the read on: nothing may be mapped between it and the exit. */
static void write_maps_and_leave(void)
{
    static char path[600];
    size_t have = 0, done = 0;
    long n;
    snprintf(path, sizeof path, "%s.%d", out, (int)getpid());
    int in = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
    while ((n = syscall(SYS_read, in, maps_buffer + have, sizeof maps_buffer - have)) > 0)
        have += (size_t)n;
    int to = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    while (done < have && (n = syscall(SYS_write, to, maps_buffer + done, have - done)) > 0)
        done += (size_t)n;
    syscall(SYS_exit_group, done == have && have ? 0 : 70);
    __builtin_unreachable();
}

static void become_leaf(void)
{
    char s[32], t[32], n[32];
    snprintf(s, sizeof s, "%lu", seed + 1000);
    snprintf(t, sizeof t, "%d", 2);
    snprintf(n, sizeof n, "%d", endless ? 40 : iterations / 4);
    execl(self, self, s, t, n, out, "leaf", (char *)NULL);
    _exit(71);
}

static void churn(struct worker *w, int n);

static void op_fork(struct worker *w)
{
    pid_t pid = fork();
    if (pid == 0) {
        int i = 0;
        single = 1;
        w->may_fork = 0;
        w->exec_at = -1;
        while (i < w->count)
            if (w->r[i].nofork)
                drop(w, i);
            else
                i++;
        if (!below(w, 3))
            become_leaf();
        churn(w, 20);
        write_maps_and_leave();
    }
    if (pid > 0 && below(w, 2))
        waitpid(pid, NULL, 0);
}

/* A fork's child has the mapping of a ring that is none any more: there it cannot be destroyed. */
static void op_ring(struct worker *w)
{
    if (w->ring) {
        syscall(SYS_io_destroy, w->ring);
        w->ring = 0;
    } else {
        syscall(SYS_io_setup, 1 + below(w, 200), &w->ring);
    }
}

static void op_vfork(void)
{
    pid_t pid = vfork();
    if (pid == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(72);
    }
    if (pid > 0)
        waitpid(pid, NULL, 0);
}

/* Raw system calls: nothing of the program's own is mapped by them. */
static void step(void)
{
    char go;
    if (write(1, "STEP\n", 5) != 5 || read(0, &go, 1) != 1)
        _exit(74);
}

static void churn(struct worker *w, int n)
{
    for (int k = 0; k < n; k++) {
        int i = (int)below(w, (size_t)w->count);
        if (k == w->exec_at)
            become_leaf();
        if (steps && k % (n / 4) == 0)
            step();
        if (endless)
            usleep(50); /* leaves an auditor of any build the time to follow */
        if (w->may_fork && k > 0 && k % (endless ? 2000 : 40) == 0) {
            if (w->index == 0)
                op_vfork();
            else
                op_fork(w);
        }
        switch (w->count ? below(w, 16) : 0) {
        case 0: case 1: case 2: op_map(w); break;
        case 3: op_trim(w); break;
        case 4: case 5: op_unmap(w, i); break;
        case 6: case 7: op_protect(w, i); break;
        case 8: op_advise(w, i); break;
        case 9: case 10: op_fixed(w, i); break;
        case 11: op_remap(w, i); break;
        case 12: op_brk(w); break;
        case 13:
            switch (below(w, 8)) {
            case 0: op_ring(w); break; /* seldom: the kernel waits for RCU */
            case 1: case 2: case 3: op_shm(w, i); break;
            default: op_name(w, i);
            }
            break;
        case 14: op_malloc(w); break;
        default: below(w, 4) ? op_remap(w, i) : op_thread();
        }
    }
}

static void *worker(void *arg)
{
    pthread_barrier_wait(&started);
    if (endless && ((struct worker *)arg)->index == 0 && write(1, "READY\n", 6) != 6)
        _exit(73);
    churn(arg, iterations);
    if (steps)
        step();
    return NULL;
}

/* Lets the stack reach its final size now, so that it cannot grow after maps was read. */
static __attribute__((noinline)) void grow_stack(void)
{
    volatile char deep[512 << 10];
    for (size_t i = 0; i < sizeof deep; i += PAGE)
        deep[i] = 1;
}

int main(int argc, char **argv)
{
    pthread_t t[MAX_THREADS];
    aio_context_t aio = 0;
    static char exe[512];
    if (argc < 5) {
        fprintf(stderr, "usage: churn SEED THREADS ITERATIONS OUT [normal|leaf|steps|exec|thread-exec|endless]\n");
        return 64;
    }
    seed = strtoul(argv[1], NULL, 10);
    threads = atoi(argv[2]);
    iterations = atoi(argv[3]);
    out = argv[4];
    mode = argc > 5 ? argv[5] : "normal";
    endless = !strcmp(mode, "endless");
    steps = !strcmp(mode, "steps");
    if (threads < 1 || threads > MAX_THREADS || readlink("/proc/self/exe", exe, sizeof exe - 1) < 0)
        return 64;
    self = exe;
    memfd = memfd_create("churn", MFD_CLOEXEC);
    exefd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (memfd < 0 || exefd < 0 || ftruncate(memfd, 1 << 20))
        return 65;
    grow_stack();
    if (seed % 4 == 3)
        syscall(SYS_io_setup, 64, &aio);
    pthread_barrier_init(&started, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        struct worker *w = &workers[i];
        w->rng = seed * 1000003 + (unsigned long)i;
        w->index = i;
        w->may_fork = strcmp(mode, "leaf") && !steps;
        w->exec_at = !strcmp(mode, "thread-exec") && i == threads - 1 ? iterations / 2 : -1;
        if (pthread_create(&t[i], NULL, worker, w))
            return 66;
    }
    for (int i = 0; i < threads; i++)
        pthread_join(t[i], NULL);
    while (wait(NULL) > 0)
        ;
    if (!strcmp(mode, "exec"))
        become_leaf();
    write_maps_and_leave();
}
