// Mappings made at several depths of ordinary C++: vectors, lambdas, std::function, virtual calls,
// threads, and from a catch block while an exception is alive. Built without frame pointers.
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t big = 1 << 20;

struct Shape {
    virtual ~Shape() = default;
    virtual std::size_t fill(int depth) = 0;
};

struct Block : Shape {
    std::vector<char> bytes;
    std::size_t fill(int depth) override
    {
        if (depth > 0)
            return 1 + fill(depth - 1);
        bytes.resize(big);
        return bytes.size();
    }
};

struct Guard {
    void *p = mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ~Guard() { munmap(p, 1 << 16); }
};

std::size_t thrower(int depth)
{
    Guard guard; // unmapped by the unwinder's landing pads
    if (depth == 0)
        throw std::runtime_error(std::string(100, 'x'));
    return thrower(depth - 1) + 1;
}

std::size_t catcher()
{
    try {
        return thrower(6);
    } catch (const std::exception &e) {
        std::vector<char> while_alive(big / 2, *e.what());
        return while_alive.size();
    }
}

} // namespace

int main(int argc, char **argv)
{
    const int threads = argc > 1 ? std::atoi(argv[1]) : 3;
    std::size_t total = 0;
    auto &shapes = *new std::vector<std::unique_ptr<Shape>>; // kept: what it maps is there at the end
    for (int i = 0; i < 8; i++) {
        shapes.push_back(std::make_unique<Block>());
        total += shapes.back()->fill(i * 3);
    }
    std::function<std::size_t(int)> nest = [&](int n) -> std::size_t {
        if (n == 0)
            return std::vector<double>(100000, 1.0).size();
        return nest(n - 1);
    };
    total += nest(12) + catcher();
    // All threads live at the same time, or the next one would take over the arena of one that is gone.
    pthread_barrier_t together;
    pthread_barrier_init(&together, nullptr, static_cast<unsigned>(threads));
    std::vector<std::thread> pool;
    std::vector<std::size_t> sums(static_cast<std::size_t>(threads));
    for (int i = 0; i < threads; i++)
        pool.emplace_back([i, &sums, &nest, &together] {
            pthread_barrier_wait(&together);
            std::map<int, std::string> tree;
            for (int k = 0; k < 3000; k++)
                tree[k] = std::string(200, 'a');
            sums[static_cast<std::size_t>(i)] = tree.size() + nest(i) + catcher();
            pthread_barrier_wait(&together);
        });
    for (auto &t : pool)
        t.join();
    for (auto s : sums)
        total += s;
    return total > big ? 0 : 1;
}
