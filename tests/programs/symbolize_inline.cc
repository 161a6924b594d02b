// Inlined calls two deep, in a namespace, in a template.
#include <cstdio>
#include <cstdlib>
#include <vector>

volatile int sink;

namespace shapes {
template <typename T> struct Box {
	T side;
	inline __attribute__((always_inline)) T area() const { return side * side + leaf(side); }
	static inline __attribute__((always_inline)) T leaf(T n) {
		sink = sink + static_cast<int>(n);
		return n + sink;
	}
};

__attribute__((noinline)) int total(const std::vector<int> &all) {
	int sum = 0;
	for (int n : all) {
		Box<int> box{n};
		sum += box.area();
	}
	return sum;
}
} // namespace shapes

int main(int argc, char **argv) {
	std::vector<int> all;
	for (int i = 0; i < argc + 3; i++) all.push_back(i * std::atoi(argv[0]));
	std::printf("%d\n", shapes::total(all));
	return 0;
}
