/* Ways in and out of an allocator that are not a call and its return: longjmp, a signal's stack, a
 * coroutine, a library that comes later (its argument). Says "pool BYTES BLOCKS", "libc BYTES BLOCKS",
 * "plugin BYTES BLOCKS". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#include <unistd.h>

static jmp_buf out_of_memory;
static char arena[1 << 20];
static size_t used;
static unsigned long bytes, blocks;
static ucontext_t caller, coroutine;

/* An allocator that does not return when it has nothing, and that uses malloc. */
__attribute__((noinline)) void *pool_alloc(size_t size)
{
	void *own = malloc(size);
	void *block = arena + used;

	free(own);
	if (size > 5000)
		longjmp(out_of_memory, 1);
	used += (size + 15) & ~15ul;
	return block;
}

__attribute__((noinline)) void pool_free(void *block)
{
	*(volatile char *)block = 0;
	free(malloc(3));
}

static void keep(size_t size)
{
	if (!malloc(size))
		abort();
	bytes += size;
	blocks++;
}

static void interrupted(int signal)
{
	(void)signal;
	keep(40);
}

static void work(void)
{
	for (int i = 0; i < 10; i++) {
		keep(500);
		swapcontext(&coroutine, &caller);
	}
}

static void pool(void)
{
	for (volatile int i = 0; i < 20; i++) {
		if (!setjmp(out_of_memory))
			pool_alloc(10000);
		pool_alloc(100);
	}
	for (volatile int i = 0; i < 5; i++)
		pool_free(pool_alloc(64));
	printf("pool 2000 20\n");
}

static void stacks(void)
{
	static char stack[65536], signals[65536];
	stack_t other = { .ss_sp = signals, .ss_size = sizeof(signals) };
	struct sigaction action = { .sa_handler = interrupted, .sa_flags = SA_ONSTACK };

	getcontext(&coroutine);
	coroutine.uc_stack.ss_sp = stack;
	coroutine.uc_stack.ss_size = sizeof(stack);
	coroutine.uc_link = &caller;
	makecontext(&coroutine, work, 0);
	for (int i = 0; i < 10; i++)
		swapcontext(&caller, &coroutine);
	sigaltstack(&other, 0);
	sigaction(SIGUSR1, &action, 0);
	for (int i = 0; i < 10; i++)
		raise(SIGUSR1);
	printf("libc %lu %lu\n", bytes, blocks);
}

int main(int argc, char **argv)
{
	static char buffer[4096];
	void *library;
	void (*run)(void);

	setvbuf(stdout, buffer, _IOFBF, sizeof(buffer));
	pool();
	stacks();
	library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0;
	if (library) {
		run = (void (*)(void))dlsym(library, "heap_plugin_run");
		run();
		printf("plugin 5050 100\n");
	}
	fflush(stdout);
	_exit(0);
}
