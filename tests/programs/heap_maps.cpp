/* C++ that builds and drops maps of strings and vectors, ROUNDS times; prints the nanoseconds of CPU that an
 * allocation and what is done with it took, and the peak of RSS in KiB.   heap_maps ROUNDS */
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <time.h>
#include <vector>

struct Node {
    std::string name;
    std::vector<int> numbers;
    std::map<std::string, std::unique_ptr<Node>> below;
};

static std::unique_ptr<Node> grow(unsigned seed, int depth)
{
    auto node = std::make_unique<Node>();
    node->name = "a node whose name is too long for its place, " + std::to_string(seed);
    node->numbers.assign(seed % 17, static_cast<int>(seed));
    for (unsigned i = 0; depth > 0 && i < 4; i++) {
        auto below = grow(seed * 31 + i, depth - 1);
        std::string key = below->name;
        node->below.emplace(std::move(key), std::move(below));
    }
    return node;
}

/* VmHWM: getrusage has that of who started this, if that was more. */
static long peak(void)
{
    char line[256];
    long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");

    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 20;
    timespec begun, ended;
    unsigned long sum = 0;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begun);
    for (int i = 0; i < rounds; i++)
        sum += grow(static_cast<unsigned>(i), 6)->below.size();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ended);
    /* 5,461 nodes, of four allocations each or a few more */
    double ns = (ended.tv_sec - begun.tv_sec) * 1e9 + (ended.tv_nsec - begun.tv_nsec);
    printf("%.1f\n%ld\n", ns / (rounds * 5461.0 * 4), peak());
    return sum == 4ul * static_cast<unsigned long>(rounds) ? 0 : 1;
}
