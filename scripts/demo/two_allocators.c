/* A small "game server" that links jemalloc under a prefix (je_malloc, as many programs and
 * language bindings do), and believes that all of its memory comes from there. It does not: the C
 * library's own malloc is still in the process, and one call of fopen, or a single free, in a
 * thread makes it reserve 64 MiB for that thread.
 *
 *   two_allocators [FILE]      FILE is a text file to read the first line of
 *
 * Three workers, each named after what it does:
 *   player    uses jemalloc only: its thread costs its stack, nothing more
 *   reader    also calls fopen and fgets, which call the C library's malloc
 *   freer     calls no malloc at all; it only frees a string that main had duplicated
 * They are still running when main returns, as the workers of a server are. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *je_malloc(size_t);
void je_free(void *);

enum { WORKERS = 3, BOARDS = 900, BOARD_BYTES = 4000 };

static pthread_barrier_t done;
static const char *config = "/etc/passwd";
static char *greeting; /* from strdup: the C library's malloc */
static char *boards[BOARDS];
static char line[256];

static void play(int rounds)
{
    for (int i = 0; i < rounds; i++) {
        char *move = je_malloc(64 + (size_t)i % 3000);
        memset(move, i, 64);
        je_free(move);
    }
}

static void finish(void)
{
    pthread_barrier_wait(&done); /* main may go on */
    pthread_barrier_wait(&done); /* never reached by main: we stay until the process ends */
}

static void *player(void *arg)
{
    pthread_setname_np(pthread_self(), "player");
    play(20000);
    finish();
    return arg;
}

static void *reader(void *arg)
{
    pthread_setname_np(pthread_self(), "reader");
    play(2000);
    FILE *f = fopen(config, "r");
    if (f) {
        if (!fgets(line, sizeof line, f))
            line[0] = 0;
        fclose(f);
    }
    finish();
    return arg;
}

static void *freer(void *arg)
{
    pthread_setname_np(pthread_self(), "freer");
    play(2000);
    free(greeting);
    finish();
    return arg;
}

int main(int argc, char **argv)
{
    static void *(*const bodies[WORKERS])(void *) = {player, reader, freer};
    pthread_t thread;
    if (argc > 1)
        config = argv[1];
    greeting = strdup("welcome");
    for (int i = 0; i < BOARDS; i++) {
        boards[i] = je_malloc(BOARD_BYTES);
        memset(boards[i], i, BOARD_BYTES);
    }
    /* A large table that is written to only at its beginning. */
    char *table = je_malloc(6 << 20);
    memset(table, 1, 100 << 10);
    pthread_barrier_init(&done, NULL, WORKERS + 1);
    for (int i = 0; i < WORKERS; i++)
        if (pthread_create(&thread, NULL, bodies[i], NULL))
            return 1;
    pthread_barrier_wait(&done);
    printf("two_allocators: %d boards, %d workers, first line of %s: %.20s\n", BOARDS, WORKERS, config, line);
    return 0;
}
