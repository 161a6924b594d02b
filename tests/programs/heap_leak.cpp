/* A service that leaks: it does one thing for each line that it reads, and answers. */
#include <cstdio>
#include <cstring>
#include <vector>

namespace service {

static std::vector<int *> held;
static int *newest;

class Session {
public:
	[[gnu::noinline]] int *remember();
	[[gnu::noinline]] int *replace();
	[[gnu::noinline]] long serve();
};

/* never freed, and its address is known to nobody soon */
int *Session::remember()
{
	int *block = new int[262144]; // the leak
	block[0] = 1;
	return block;
}

/* a buffer that is replaced */
int *Session::replace()
{
	int *block = new int[100000];
	block[0] = 1;
	delete[] newest;
	newest = block;
	return block;
}

/* requests much and gives it back */
long Session::serve()
{
	long sum = 0;
	for (int i = 0; i < 100; i++) {
		std::vector<int> work(1000 + i, i);
		sum += work[500];
	}
	return sum;
}

/* a cache that is filled once */
[[gnu::noinline]] static void fill()
{
	for (int i = 0; i < 50; i++)
		held.push_back(new int[10000]());
}

} // namespace service

int main()
{
	static char input[256];
	service::Session session;
	char line[256];

	setvbuf(stdin, input, _IOFBF, sizeof(input));
	setvbuf(stdout, nullptr, _IONBF, 0);
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		long answer = 0;
		if (!strncmp(line, "leak", 4))
			answer = *session.remember();
		else if (!strncmp(line, "fill", 4))
			service::fill();
		answer += *session.replace() + session.serve();
		printf("%ld\n", answer);
	}
	return 0;
}
