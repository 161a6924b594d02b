/* The first thread exits, another lives on: /proc/PID/maps is empty, /proc/TID works.
 * The second thread prints its id once the first is a zombie, then waits for standard input.
 *   cc -O1 -pthread -o procfs_zombie_leader procfs_zombie_leader.c
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void *survivor(void *arg) {
    (void)arg;
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/%d/stat", getpid());
    for (;;) {
        FILE *stat = fopen(path, "r");
        size_t read = fread(text, 1, sizeof text - 1, stat);
        fclose(stat);
        text[read] = 0;
        if (strstr(text, ") Z ")) break;
        usleep(1000);
    }
    printf("%d\n", gettid());
    fflush(stdout);
    while (read(0, text, 1) > 0) {}
    _exit(0);
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, survivor, NULL);
    pthread_exit(NULL);
}
