// Three threads whose memory the program has locked.
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static void *run(void *unused) {
    pause();
    return unused;
}

int main(void) {
    if (mlockall(MCL_CURRENT | MCL_FUTURE)) {
        puts("refused");
        return 1;
    }
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run, NULL)) return 1;
    }
    puts("READY");
    fflush(stdout);
    pause();
    return 0;
}
