/* main > outer > middle > inner > malloc > ... > mmap, with frames of different shapes: a plain
 * one, one with a variable-length array (rbp-based), one with a realigned stack. With argument
 * "thread" the same from a thread, with "signal" from a signal handler, with "direct" the
 * innermost function calls mmap itself, with "alt" from a handler on a signal stack. */
#include "unwind_capture.h"
#include <pthread.h>
#include <stdio.h>

static volatile size_t sink;
static const char *mode;

__attribute__((noinline)) void inner(volatile char *buffer) {
	if (!strcmp(mode, "direct")) {
		void *p = mmap(NULL, CAP_LEN, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		sink += (size_t)p;
	} else {
		void *p = malloc(CAP_LEN + 64);
		sink += (size_t)p;
	}
	sink += (size_t)buffer[0];
}

__attribute__((noinline)) void middle(size_t n) {
	/* Needs 64-byte alignment: the stack is realigned, the caller's found through memory. */
	volatile char aligned[64] __attribute__((aligned(64)));
	volatile char vla[n];
	memset((void *)aligned, 1, sizeof aligned);
	vla[0] = aligned[3];
	inner(vla);
	sink += (size_t)aligned[5] + (size_t)vla[0];
}

__attribute__((noinline)) void outer(size_t n) {
	volatile size_t big[100];
	big[n % 100] = n;
	middle(n + 10);
	sink += big[n % 100];
}

__attribute__((noinline)) void *thread_main(void *arg) {
	outer((size_t)arg);
	sink++;
	return NULL;
}

__attribute__((noinline)) void on_signal(int sig) {
	outer((size_t)sig);
	sink++;
}

__attribute__((noinline)) void interrupted(void) {
	sink++;
	raise(SIGUSR1);
	sink++;
}

int main(int argc, char **argv) {
	mode = argc > 1 ? argv[1] : "malloc";
	cap_install();
	if (!strcmp(mode, "thread")) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, thread_main, (void *)7)) return 3;
		pthread_join(thread, NULL);
	} else if (!strcmp(mode, "signal") || !strcmp(mode, "alt")) {
		struct sigaction action;
		memset(&action, 0, sizeof action);
		action.sa_handler = on_signal;
		if (!strcmp(mode, "alt")) {
			stack_t alt = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
			sigaltstack(&alt, NULL);
			action.sa_flags = SA_ONSTACK;
		}
		sigaction(SIGUSR1, &action, NULL);
		interrupted();
	} else {
		outer((size_t)argc);
	}
	return 0;
}
