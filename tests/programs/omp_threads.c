/* Four OpenMP threads (OMP_NUM_THREADS): says ready when they have run, and waits for its standard input. */
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    long sum = 0;
#pragma omp parallel reduction(+ : sum)
    sum += getpid();
    puts("ready");
    fflush(stdout);
    char byte;
    return sum == 0 || read(0, &byte, 1) < 0;
}
