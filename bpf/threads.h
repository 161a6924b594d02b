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

/* set by user space before loading: the number of struct task_struct among the kernel's types; 0: not known */
const volatile __u32 task_type = 0;

/* Since Linux 6.2; the verifier puts a move in its place. */
extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym __weak;

/* The task, for plain loads of pointers where calls of a helper would take long. For each such load from a pointer that it
 * trusts the verifier searches the kernel's whole BTF by name, four times (6.18, kernel/bpf/verifier.c,
 * check_ptr_to_btf_access()): that was half the time a short run took. So it must not trust this one. */
#define HAS_CHEAP_LOADS (task_type && bpf_ksym_exists(bpf_rdonly_cast))

static __always_inline struct task_struct *for_loads(struct task_struct *task)
{
	return HAS_CHEAP_LOADS ? bpf_rdonly_cast(task, task_type) : task;
}

/* Where that cannot be, it is read with the helper, as all others are. */
static __always_inline struct mm_struct *mm_of(struct task_struct *task)
{
	return HAS_CHEAP_LOADS ? for_loads(task)->mm : BPF_CORE_READ(task, mm);
}

#endif
