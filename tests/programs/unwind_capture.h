/* Captures registers and stack bytes of the process at a system call, as a tracer does, without
 * one: a seccomp filter turns mmap calls of a marked length into SIGSYS, whose handler prints the
 * interrupted context, the stack bytes and /proc/self/maps to standard output. The call then
 * fails with ENOMEM. Lengths 0x12340000 to 0x1234ffff are marked. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

/* <linux/seccomp.h> and <linux/filter.h> are not there for musl-gcc. */
struct cap_filter { uint16_t code; uint8_t jt, jf; uint32_t k; };
struct cap_prog { unsigned short len; struct cap_filter *filter; };

#define CAP_LEN 0x12340000ul
#define CAP_MAX_STACK (64u << 10)

static void cap_write(const char *data, size_t len) {
	while (len > 0) {
		ssize_t n = write(1, data, len);
		if (n <= 0) _exit(9);
		data += n;
		len -= (size_t)n;
	}
}

static char cap_text[3 * CAP_MAX_STACK];
static size_t cap_at;

static void cap_hex(uint64_t value) {
	for (int shift = 60; shift >= 0; shift -= 4) cap_text[cap_at++] = "0123456789abcdef"[(value >> shift) & 15];
	cap_text[cap_at++] = ' ';
}

static char cap_maps[256 << 10];

/* The end of the mapping that holds sp. */
static uint64_t cap_stack_end(size_t maps_len, uint64_t sp) {
	size_t at = 0;
	while (at < maps_len) {
		char *rest;
		uint64_t start = strtoull(cap_maps + at, &rest, 16);
		uint64_t end = strtoull(rest + 1, NULL, 16);
		if (start <= sp && sp < end) return end;
		while (at < maps_len && cap_maps[at] != '\n') at++;
		at++;
	}
	return sp;
}

static void cap_handler(int sig, siginfo_t *info, void *context) {
	(void)sig;
	(void)info;
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
	int fd = open("/proc/self/maps", O_RDONLY);
	size_t maps_len = 0;
	ssize_t n;
	while ((n = read(fd, cap_maps + maps_len, sizeof cap_maps - 1 - maps_len)) > 0) maps_len += (size_t)n;
	close(fd);
	cap_maps[maps_len] = 0;
	uint64_t sp = (uint64_t)regs[REG_RSP];
	uint64_t end = cap_stack_end(maps_len, sp);
	int full = end - sp <= CAP_MAX_STACK;
	if (!full) end = sp + CAP_MAX_STACK;
	cap_write("STACK ", 6);
	cap_at = 0;
	cap_hex((uint64_t)regs[REG_RIP]);
	cap_hex(sp);
	cap_hex((uint64_t)regs[REG_RBP]);
	cap_hex((uint64_t)regs[REG_RBX]);
	cap_hex((uint64_t)regs[REG_R12]);
	cap_hex((uint64_t)regs[REG_R13]);
	cap_hex((uint64_t)regs[REG_R14]);
	cap_hex((uint64_t)regs[REG_R15]);
	cap_hex((uint64_t)full);
	cap_text[cap_at++] = '\n';
	for (uint64_t p = sp; p + 8 <= end; p += 8) cap_hex(*(uint64_t *)p);
	cap_text[cap_at++] = '\n';
	cap_write(cap_text, cap_at);
	cap_write(cap_maps, maps_len);
	cap_write("END\n", 4);
	regs[REG_RAX] = -ENOMEM;
}

static void cap_install(void) {
	struct cap_filter code[] = {
		{0x20, 0, 0, 0},                 /* load nr */
		{0x15, 0, 4, __NR_mmap},         /* mmap? */
		{0x20, 0, 0, 24},                /* load the low half of argument 1, the length */
		{0x54, 0, 0, 0xffff0000},        /* and */
		{0x15, 0, 1, (uint32_t)CAP_LEN}, /* marked? */
		{0x06, 0, 0, 0x00030000},        /* SECCOMP_RET_TRAP */
		{0x06, 0, 0, 0x7fff0000},        /* SECCOMP_RET_ALLOW */
	};
	struct cap_prog prog = {sizeof code / sizeof *code, code};
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_sigaction = cap_handler;
	action.sa_flags = SA_SIGINFO | SA_NODEFER;
	sigaction(SIGSYS, &action, NULL);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &prog, 0, 0)) _exit(8);
}

/* Reports to the test that a stage is over, and waits for its answer. */
static void cap_wait(void) {
	char byte;
	cap_write("WAIT\n", 5);
	if (read(0, &byte, 1) < 0) _exit(7);
}
