/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Filling in the wire record (vmaudit.h): whose it is, and what a call left where.
 */
#ifndef VMAUDIT_RECORD_H
#define VMAUDIT_RECORD_H

#include "vmaudit.h"
#include "pids.h"
#include "threads.h"

/* All but the address space. The thread's numbers are known. */
static __always_inline void identify_thread(struct vmaudit_record *record, struct traced_thread *thread, __u32 op)
{
	record->time_ns = bpf_ktime_get_ns();
	record->pid = thread->pid;
	record->tid = thread->tid;
	record->op = op;
	record->flags = 0;
	record->payload = 0;
}

static __always_inline void identify(struct vmaudit_record *record, struct task_struct *task,
				     struct traced_thread *thread, __u32 op)
{
	struct mm_struct *mm = mm_of(task);

	identify_thread(record, thread, op);
	record->mm = (__u64)mm;
	record->total_vm = mm ? BPF_CORE_READ(mm, total_vm) : 0;
}

/* What some calls leave elsewhere than in their result. */
struct extra {
	__u64 aux[2];
	__u64 ino;
	__u32 dev;
	__u32 nlink;
	__u64 flags;
	__u64 file;
	__u64 mm, total_vm;
	__u64 pid;
	__u64 stack;
};

static __always_inline void fill(struct vmaudit_record *record, struct traced_thread *thread, struct pt_regs *regs,
				 struct extra *extra)
{
	identify_thread(record, thread, 0);
	record->mm = extra->mm;
	record->total_vm = extra->total_vm;
	ARCH_ARGS(record, regs);
	ARCH_REGS(record, regs);
	record->aux[0] = extra->aux[0];
	record->aux[1] = extra->aux[1];
	record->ino = extra->ino;
	record->dev = extra->dev;
	record->nlink = extra->nlink;
	record->flags = extra->flags;
	record->stack = extra->stack;
}

/* A call, and its result. */
static __always_inline void fill_call(struct vmaudit_record *record, struct traced_thread *thread,
				      struct pt_regs *regs, struct extra *extra, __u32 op, long ret)
{
	fill(record, thread, regs, extra);
	record->op = op;
	record->ret = ret;
}

#endif
