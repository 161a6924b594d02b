/* Writes into the memory that the preloaded library of vmaudit shares with vmaudit, as a hostile program would, and ends.
 *   heap_hostile MODE NAME=OFFSET...
 * The offsets are those of the file (capture::preload::layout). It finds the mappings by their name in /proc/self/maps. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int count;
static char **given;

static size_t at(const char *name)
{
    size_t len = strlen(name);
    for (int i = 0; i < count; i++)
        if (!strncmp(given[i], name, len) && given[i][len] == '=')
            return strtoull(given[i] + len + 1, 0, 0);
    fprintf(stderr, "no offset of %s\n", name);
    exit(2);
}

/* The area's file, opened anew through the kernel's list of mappings (root only), or by the mapping itself. */
static int area(void)
{
    char line[512], perms[8], path[128];
    unsigned long from, to, offset;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        if (!strstr(line, "memfd:vmaudit-heap"))
            continue;
        if (sscanf(line, "%lx-%lx %7s %lx", &from, &to, perms, &offset) != 4 || perms[3] != 's' || to - from < 8192)
            continue;
        snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", from, to);
        int fd = open(path, O_RDWR);
        if (fd >= 0) {
            fclose(maps);
            return fd;
        }
    }
    return -1;
}

static void put(int fd, size_t where, const void *bytes, size_t len)
{
    if (pwrite(fd, bytes, len, (off_t)where) != (ssize_t)len)
        perror("pwrite");
}

static void word(int fd, size_t where, uint64_t value)
{
    put(fd, where, &value, sizeof value);
}

static uint64_t seed = 0x9e3779b97f4a7c15;
static uint64_t next(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static void noise(int fd, size_t where, size_t len)
{
    uint64_t block[512];
    for (size_t done = 0; done < len; done += sizeof block) {
        for (int i = 0; i < 512; i++)
            block[i] = next() & next();
        put(fd, where + done, block, sizeof block);
    }
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    given = argv + 2;
    count = argc - 2;
    void *keep[64];
    for (int i = 0; i < 64; i++)
        keep[i] = malloc(100 + (size_t)i);
    int fd = area();
    if (fd < 0) {
        puts("no area");
        return 3;
    }
    if (!strcmp(mode, "truncate")) {
        int cut = ftruncate(fd, 0) ? errno : 0, longer = ftruncate(fd, 1L << 40) ? errno : 0;
        printf("cut %d longer %d\n", cut, longer);
    } else if (!strcmp(mode, "blocks")) {
        /* Each page of 40 leaves has the same 514 words. */
        uint64_t block = 1ull << 42 | 100 << 10 | 1 << 9, page = 514 << 1;
        for (int i = 0; i < 514; i++)
            word(fd, at("blocks") + 8 * (size_t)i, block | (uint64_t)(i & 511));
        for (int leaf = 0; leaf < 40; leaf++)
            for (size_t i = 0; i < 4096; i++)
                word(fd, at("leaves") + 32768 * (size_t)leaf + 8 * i, page);
        uint32_t leaves = 40;
        put(fd, at("next_leaf"), &leaves, 4);
    } else if (!strcmp(mode, "stacks")) {
        /* 3,000 stacks that have 65,536 frames in common, 1,000 of 1,000 frames, and 1,000 that lead in a circle. */
        uint32_t last = 5000;
        for (uint64_t i = 1; i < 65536 + 3000; i++) {
            uint64_t node[2] = { 0x400000 + i, i - 1 };
            put(fd, at("nodes") + 16 * i, node, sizeof node);
        }
        uint64_t circle[2] = { 0x400000, 70000 };
        put(fd, at("nodes") + 16 * 70000, circle, sizeof circle);
        for (uint32_t i = 1; i <= last; i++) {
            uint32_t stack[4] = { i <= 3000 ? 65536 + i - 1 : i <= 4000 ? 1000 : 70000, 1, i & 1, 0 };
            put(fd, at("stacks") + 16 * (size_t)i, stack, sizeof stack);
        }
        put(fd, at("last_stack"), &last, 4);
    } else if (!strcmp(mode, "overflow")) {
        uint32_t last = 1000, owner = 1 << 16, chunks = 1;
        for (uint32_t i = 1; i <= last; i++) {
            uint32_t stack[4] = { i, 5, 0xff, 0 };
            put(fd, at("stacks") + 16 * (size_t)i, stack, sizeof stack);
            for (size_t field = 0; field < 7; field++)
                word(fd, at("counts") + 64 * (size_t)i + 8 * field, field & 1 ? UINT64_MAX : UINT64_MAX / 2);
        }
        put(fd, at("last_stack"), &last, 4);
        put(fd, at("owners"), &owner, 4);
        put(fd, at("next_chunk"), &chunks, 4);
        for (size_t i = 0; i < 20; i++)
            word(fd, at("doubts") + 8 * i, UINT64_MAX);
    } else if (!strcmp(mode, "noise")) {
        seed ^= at("seed");
        noise(fd, at("head"), 4096);
        noise(fd, at("rules"), 32768);
        noise(fd, at("stacks"), 65536);
        noise(fd, at("words"), 1 << 20);
        noise(fd, at("nodes"), 1 << 20);
        noise(fd, at("owners"), 4096);
        noise(fd, at("counts"), 1 << 18);
        noise(fd, at("leaf_windows"), 4096);
        noise(fd, at("leaves"), 1 << 16);
        noise(fd, at("blocks"), 1 << 20);
        noise(fd, at("samples"), 1 << 16);
        /* And it goes on allocating with what it has written there. */
        for (int i = 0; i < 20000; i++) {
            free(keep[i & 63]);
            keep[i & 63] = malloc(16 + (next() & 0xffff));
        }
    } else {
        puts("no such mode");
        return 2;
    }
    puts("done");
    return 0;
}
