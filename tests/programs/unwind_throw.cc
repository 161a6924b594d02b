// Frames with landing pads and destructors, and a call at the very end of a function that does
// not return: its return address lies in the next function.
#include "unwind_capture.h"
#include <stdexcept>
#include <string>
#include <vector>

static volatile size_t sink;

struct Guard {
	std::string name;
	~Guard() { sink = sink + name.size(); }
};

[[noreturn]] __attribute__((noinline)) void never_returns(const std::string &text) {
	void *p = mmap(nullptr, CAP_LEN, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	sink = sink + reinterpret_cast<size_t>(p);
	throw std::runtime_error(text);
}

__attribute__((noinline)) void cold_path(size_t n) {
	never_returns(std::string(n, 'x'));
}

template <typename T> __attribute__((noinline)) void templated(T n) {
	Guard guard{std::string(static_cast<size_t>(n) + 20, 'y')};
	std::vector<T> many(100, n);
	cold_path(static_cast<size_t>(many[3]));
}

__attribute__((noinline)) void catches(size_t n) {
	try {
		templated<long>(static_cast<long>(n));
	} catch (const std::exception &) {
		sink = sink + 1;
	}
}

int main(int argc, char **) {
	cap_install();
	catches(static_cast<size_t>(argc));
	return 0;
}
