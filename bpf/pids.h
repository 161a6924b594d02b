/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Numbers of tasks as vmaudit's own PID namespace has them: inside a container they are others than
 * the kernel's. (bpf_get_ns_current_pid_tgid knows the current task only, and only where it is in
 * exactly that namespace.)
 */
#ifndef VMAUDIT_PIDS_H
#define VMAUDIT_PIDS_H

#include "threads.h"

/* Namespaces nest up to 32 deep (MAX_PID_NS_LEVEL); a container in a container is 2. */
#define PID_LEVELS 8

/* set by user space before loading: inode number of the namespace; 0: the first one, whose numbers
 * are the tasks' own */
const volatile __u32 pid_namespace = 0;

static __always_inline int number_in_namespace(struct pid *pid, int number)
{
	__u32 level = BPF_CORE_READ(pid, level), i, inum;
	struct pid_namespace *namespace;
	struct upid *upid;
	int found;

	for (i = 0; i < PID_LEVELS; i++) {
		if (i > level)
			break;
		upid = (struct upid *)((char *)pid + bpf_core_field_offset(struct pid, numbers) +
				       i * bpf_core_type_size(struct upid));
		namespace = BPF_CORE_READ(upid, ns);
		inum = BPF_CORE_READ(namespace, ns.inum);
		if (inum == pid_namespace) {
			found = BPF_CORE_READ(upid, nr);
			return found;
		}
	}
	return number;
}

static __always_inline int tid_of(struct task_struct *task)
{
	return pid_namespace ? number_in_namespace(BPF_CORE_READ(task, thread_pid), task->pid) : task->pid;
}

static __always_inline int pid_of(struct task_struct *task)
{
	if (!pid_namespace)
		return task->tgid;
	return number_in_namespace(BPF_CORE_READ(task, group_leader, thread_pid), task->tgid);
}

/* A thread's numbers are read once: code that reads them in many places would have the verifier
 * walk the levels in each. */
static __always_inline void know_numbers(struct task_struct *task, struct traced_thread *thread)
{
	if (thread->pid)
		return;
	thread->tid = tid_of(task);
	thread->pid = pid_of(task);
}

#endif
