/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Processes that are to have probes of their own: those that a counted one forks, and those that execute a program. A
 * breakpoint is in the address spaces that user space names, and in no other; this tells it which, at once, and not behind
 * the records of the large ring. Included behind a definition of IS_COUNTED(task).
 */
#ifndef VMAUDIT_NEWCOMERS_H
#define VMAUDIT_NEWCOMERS_H

#include "vmaudit_core.h"
#include "pids.h"
#include "threads.h"

struct vmaudit_newcomer {
	__u64 time_ns;
	__u32 pid;
	__u32 parent; /* 0: it has executed a program */
};

/* keeps the type in this object's BTF */
struct vmaudit_newcomer newcomer_type = {};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} newcomers SEC(".maps");

static __always_inline int send_newcomer(struct task_struct *task, struct task_struct *parent)
{
	struct vmaudit_newcomer newcomer = { .time_ns = bpf_ktime_get_ns(), .pid = pid_of(task) };

	if (parent)
		newcomer.parent = pid_of(parent);
	if (bpf_ringbuf_output(&newcomers, &newcomer, sizeof(newcomer), BPF_RB_FORCE_WAKEUP))
		count(VMAUDIT_LOST_TASKS);
	return 0;
}

/* Spares, as in tasks.h: the second report of a process does no harm. */
#define NEWCOMER_PROGRAMS(suffix)                                                                     \
	SEC("tp_btf/sched_process_fork")                                                              \
	int BPF_PROG(newcomer_fork##suffix, struct task_struct *parent, struct task_struct *child)    \
	{                                                                                             \
		if (parent->tgid == child->tgid || !IS_COUNTED(parent))                               \
			return 0;                                                                     \
		return send_newcomer(child, parent);                                                  \
	}                                                                                             \
	SEC("tp_btf/sched_process_exec")                                                              \
	int BPF_PROG(newcomer_exec##suffix, struct task_struct *task)                                 \
	{                                                                                             \
		return IS_COUNTED(task) ? send_newcomer(task, 0) : 0;                                 \
	}

NEWCOMER_PROGRAMS()
NEWCOMER_PROGRAMS(_spare)
NEWCOMER_PROGRAMS(_spare2)

#endif
