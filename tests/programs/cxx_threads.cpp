// Two threads of C++'s std::thread, and 17 whose stacks the program makes smaller itself.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <pthread.h>
#include <thread>
#include <unistd.h>
#include <vector>

static void *wait(void *)
{
    for (;;)
        pause();
}

int main()
{
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; i++)
        threads.emplace_back([] { wait(nullptr); });
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 704 << 10);
    for (int i = 0; i < 17; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &attr, wait, nullptr) != 0)
            return 1;
    }
    puts("READY");
    fflush(stdout);
    getchar();
    _exit(0);
}
