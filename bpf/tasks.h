/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The life of tasks, and those that ran before tracing began.
 */
#ifndef VMAUDIT_TASKS_H
#define VMAUDIT_TASKS_H

#include "cgroup.h"
#include "files.h"
#include "interpreters.h"
#include "may_see.h"
#include "record.h"
#include "rings.h"
#include "vmas.h"

#define SIGNAL_GROUP_EXIT 0x00000004

/* set by user space before loading */
const volatile bool follow_forks = true;
/* Children of processes that ran before tracing began: what user space knows of the parent is from
 * a snapshot that calls and forks may have overtaken, so each fork is listed. */
const volatile bool list_forks = false;

/* keeps the type in this object's BTF */
struct vmaudit_found found_type = {};

/* What a task reports of its life, each of them once: since Linux 7.0 these tracepoints are preempted
 * (include/linux/tracepoint.h: SRCU instead of preemption off), and a program that is in flight on a
 * CPU is skipped for other tasks on it. Spare programs then do the work; that one of
 * them has done it is noted in the thread's `reported`. */
#define REPORTED_CREATION 1
#define REPORTED_END 2

static __always_inline int on_fork(struct task_struct *parent, struct task_struct *child)
{
	struct traced_thread *thread = bpf_task_storage_get(&threads, parent, 0, 0), *created;
	struct vmaudit_record *record;
	struct mm_struct *mm = mm_of(parent), *child_mm = mm_of(child);
	bool is_thread, hidden, listed = false;
	__u64 key = (__u64)mm;
	struct pt_regs *regs;

	if (!thread || !mm)
		return 0;
	is_thread = parent->tgid == child->tgid;
	if (!is_thread && !follow_forks)
		return 0;
	know_numbers(parent, thread);
	hidden = is_hidden(parent, thread);
	created = bpf_task_storage_get(&threads, child, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (created) {
		if (created->reported & REPORTED_CREATION)
			return 0;
		created->reported |= REPORTED_CREATION;
		know_numbers(child, created);
		if (hidden)
			make_unknown(created);
	} else {
		count(VMAUDIT_LOST_TASKS);
	}
	if (hidden)
		return 0;
	/* Other threads may have changed the parent since the copy was made, or the copy lacks what a
	 * driver keeps: then send the copy. */
	if (child_mm != mm &&
	    (list_forks || BPF_CORE_READ(mm, mm_users.counter) > 1 || bpf_map_lookup_elem(&keeping, &key)))
		listed = send_vmas(child, false);
	if (child_mm != mm)
		note_copy((__u64)mm, (__u64)child_mm);
	count(VMAUDIT_SEEN);
	record = reserve_plain();
	if (!record)
		return 0;
	identify(record, parent, thread, VMAUDIT_OP_FORK);
	if (listed)
		record->flags |= VMAUDIT_LISTED;
	regs = (struct pt_regs *)bpf_task_pt_regs(child);
	record->args[0] = child->tgid;
	record->args[1] = child->pid;
	if (created) {
		record->args[0] = *(volatile __u32 *)&created->pid;
		record->args[1] = *(volatile __u32 *)&created->tid;
	}
	record->args[2] = (__u64)child_mm;
	record->args[3] = regs->sp;
	record->args[4] = is_thread;
	record->args[5] = BPF_CORE_READ(child_mm, brk);
	__builtin_memcpy(record->comm, child->comm, VMAUDIT_COMM);
	record->ret = record->args[1];
	submit_plain(record);
	return 0;
}

/* The current task may not be inspected by the viewer any more: for that user it ends here, and it is not
 * known how. */
__noinline int send_end_of_view(__u32 group_dead)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct vmaudit_record *record;

	if (!thread)
		return 0;
	know_numbers(task, thread);
	record = reserve_plain();
	if (!record)
		return 0;
	identify_thread(record, thread, VMAUDIT_OP_EXIT);
	record->mm = 0;
	record->total_vm = 0;
	record->args[0] = -1;
	record->args[1] = group_dead;
	record->ret = 0;
	submit_plain(record);
	return 0;
}

static __always_inline int on_exec(struct task_struct *task, int old_pid)
{
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct vmaudit_record *record;
	struct mm_struct *mm = mm_of(task);
	struct file *exe;
	bool listed;

	if (!thread && entered(task)) {
		thread = bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!thread)
			count(VMAUDIT_LOST_TASKS);
	}
	/* the last one's address space lived when this one's was made: never the same address */
	if (!thread || !mm || thread->executed == (__u64)mm)
		return 0;
	thread->executed = (__u64)mm;
	/* a thread that is not the first takes over the first one's number */
	thread->pid = 0;
	if (!may_see(task)) {
		if (!is_unknown(thread)) {
			count(VMAUDIT_HIDDEN);
			send_end_of_view(1);
		}
		make_unknown(thread);
		return 0;
	}
	thread->low = 0;
	thread->high = 0;
	know_numbers(task, thread);
	listed = bpf_ksym_exists(bpf_iter_task_vma_new) ? send_vmas(task, true) : send_exec_runs(task, thread);
	exe = BPF_CORE_READ(mm, exe_file);
	if (exe && files_with_interpreters()) {
		struct inode *inode = inode_of(exe);

		note_code(BPF_CORE_READ(inode, i_ino), BPF_CORE_READ(inode, i_sb, s_dev), 0, 0);
	}
	send_file((__u64)exe);
	count(VMAUDIT_SEEN);
	record = reserve_plain();
	if (!record)
		return 0;
	identify(record, task, thread, VMAUDIT_OP_EXEC);
	if (listed)
		record->flags |= VMAUDIT_LISTED;
	if (exe)
		set_file(record, exe, thread->file);
	record->args[0] = BPF_CORE_READ(mm, start_brk);
	record->args[1] = BPF_CORE_READ(mm, brk);
	record->args[2] = BPF_CORE_READ(mm, start_stack);
	record->args[3] = ARCH_IS_COMPAT(task);
	record->args[4] = old_pid;
	__builtin_memcpy(record->comm, task->comm, VMAUDIT_COMM);
	record->ret = 0;
	submit_plain(record);
	return 0;
}

static __always_inline int on_exit(struct task_struct *task)
{
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct vmaudit_record *record;
	struct signal_struct *signal;

	if (!thread || thread->reported & REPORTED_END)
		return 0;
	thread->reported |= REPORTED_END;
	know_numbers(task, thread);
	signal = BPF_CORE_READ(task, signal);
	if (is_hidden(task, thread)) {
		if (!is_unknown(thread))
			send_end_of_view(BPF_CORE_READ(signal, live.counter) == 0);
		return 0;
	}
	count(VMAUDIT_SEEN);
	record = reserve_plain();
	if (!record)
		return 0;
	identify(record, task, thread, VMAUDIT_OP_EXIT);
	record->args[0] = BPF_CORE_READ(signal, flags) & SIGNAL_GROUP_EXIT ? BPF_CORE_READ(signal, group_exit_code)
									    : task->exit_code;
	record->args[1] = BPF_CORE_READ(signal, live.counter) == 0;
	record->ret = 0;
	submit_plain(record);
	return 0;
}

static __always_inline int on_rename(struct task_struct *task, const char *comm)
{
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct vmaudit_record *record;
	__u64 name[VMAUDIT_COMM / 8] = {};

	if (!thread || takes_a_programs_name(task) || is_hidden(task, thread))
		return 0;
	bpf_probe_read_kernel_str(name, VMAUDIT_COMM, comm);
	if (name[0] == thread->renamed[0] && name[1] == thread->renamed[1])
		return 0;
	thread->renamed[0] = name[0];
	thread->renamed[1] = name[1];
	know_numbers(task, thread);
	record = reserve_plain();
	if (!record)
		return 0;
	identify(record, task, thread, VMAUDIT_OP_RENAME);
	__builtin_memcpy(record->comm, name, VMAUDIT_COMM);
	record->ret = 0;
	submit_plain(record);
	return 0;
}

#define TASK_PROGRAMS(suffix)                                                                         \
	SEC("tp_btf/sched_process_fork")                                                              \
	int BPF_PROG(task_forked##suffix, struct task_struct *parent, struct task_struct *child)      \
	{                                                                                             \
		return on_fork(parent, child);                                                        \
	}                                                                                             \
	SEC("tp_btf/sched_process_exec")                                                              \
	int BPF_PROG(task_executed##suffix, struct task_struct *task, int old_pid)                    \
	{                                                                                             \
		return on_exec(task, old_pid);                                                        \
	}                                                                                             \
	SEC("tp_btf/sched_process_exit")                                                              \
	int BPF_PROG(task_exited##suffix, struct task_struct *task)                                   \
	{                                                                                             \
		return on_exit(task);                                                                 \
	}                                                                                             \
	SEC("tp_btf/task_rename")                                                                     \
	int BPF_PROG(task_renamed##suffix, struct task_struct *task, const char *comm)                \
	{                                                                                             \
		return on_rename(task, comm);                                                         \
	}

TASK_PROGRAMS()
TASK_PROGRAMS(_spare)
TASK_PROGRAMS(_spare2)

/* One pass over all tasks: marks every thread of each process whose first thread is marked (user
 * space does that by pidfd), and reports which threads there are. A thread that a parent not marked yet
 * creates behind the pass is found by the next one. */
SEC("iter/task")
int mark_threads(struct bpf_iter__task *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	struct task_struct *task = ctx->task;
	struct vmaudit_found found = {};
	struct task_struct *leader;
	struct mm_struct *mm;

	if (!task)
		return 0;
	leader = task->group_leader;
	if (!leader || !bpf_task_storage_get(&threads, leader, 0, 0) || !may_see(task))
		return 0;
	if (!bpf_task_storage_get(&threads, task, 0, 0)) {
		count(VMAUDIT_MARKED);
		if (!bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE))
			count(VMAUDIT_UNMARKABLE);
	}
	mm = mm_of(task);
	found.mm = (__u64)mm;
	found.brk = mm ? BPF_CORE_READ(mm, brk) : 0;
	found.pid = pid_of(task);
	found.tid = tid_of(task);
	__builtin_memcpy(found.comm, task->comm, VMAUDIT_COMM);
	bpf_seq_write(seq, &found, sizeof(found));
	return 0;
}

#endif
