/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which threads are traced. Every object of vmaudit's has this map, and user space gives all of them
 * the same one.
 */
#ifndef VMAUDIT_THREADS_H
#define VMAUDIT_THREADS_H

#include "vmaudit_core.h"

/* Present for every traced thread, so it is the filter, too. User space sets it to zeros. */
struct traced_thread {
	/* [low, high): the part of the stack mapping in use when it was last read */
	__u64 low;
	__u64 high;
	/* its numbers in vmaudit's PID namespace; 0: not read yet (pids.h) */
	__u32 pid;
	__u32 tid;
	/* the address space that it executed a program in last; what it reported (tasks.h) */
	__u64 executed;
	__u64 reported;
	/* bytes of stack to copy. Through memory, so that the verifier forgets by which way it came
	 * to them: else it would verify all that follows once for each. */
	__u64 to_copy;
	/* the number of the path that send_file() sent (files.h) */
	__u64 file;
	/* return addresses that probes have replaced: the innermost, and by which address (stack.h) */
	__u64 replaced;
	__u64 trampoline;
	__u64 renamed[2];
	/* its state in an interpreter, where it was found last (managed.h) */
	__u64 managed;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct traced_thread);
} threads SEC(".maps");

/* Pointers that lead away from a task or a VMA are read with the helper, never by a plain load:
 * for each plain load the verifier searches the kernel's whole BTF by name, four times (6.18,
 * kernel/bpf/verifier.c, check_ptr_to_btf_access()). That was half the time a short run took.
 * Only the address space of the hot path is had by a load: once, at its beginning. */
static __always_inline struct mm_struct *mm_of(struct task_struct *task)
{
	return BPF_CORE_READ(task, mm);
}

#endif
