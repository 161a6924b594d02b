/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The user for whom events are reported. A vmaudit whose file has capabilities (setcap(8)) can see more than the user
 * who started it: then nothing is sent of a task that this user could not inspect himself.
 *
 * The rule is the kernel's own for PTRACE_MODE_READ (kernel/ptrace.c, __ptrace_may_access();
 * security/commoncap.c, cap_ptrace_access_check()), for a user who has no capabilities but in user
 * namespaces that he has made. It is checked at each event: a program that is setuid, or that makes
 * itself not dumpable as ssh-agent does, is not to be seen from then on. What the rule needs and this
 * kernel does not have where it is searched for counts as no.
 */
#ifndef VMAUDIT_MAY_SEE_H
#define VMAUDIT_MAY_SEE_H

#include "vmaudit_core.h"
#include "rings.h"
#include "threads.h"

#define SUID_DUMP_USER 1	/* include/linux/sched/coredump.h */
#define MMF_DUMPABLE_MASK 3	/* include/linux/mm_types.h */
#define USER_NAMESPACE_LEVELS 33 /* create_user_ns(), kernel/user_namespace.c */

struct vmaudit_viewer {
	__u32 limited; /* 0: the user who started vmaudit may see what it sees */
	__u32 uid, gid;
	__u32 user_namespace; /* inode number */
};

/* set by user space before loading; as long as it is 0, the verifier removes all of this */
const volatile struct vmaudit_viewer viewer = {};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	__u32 val;
} kuid_t;

typedef struct {
	__u32 val;
} kgid_t;

/* two words of 32 bits until Linux 6.2, then one of 64: the same bytes */
typedef struct {
	__u64 val;
} kernel_cap_t;

struct user_namespace {
	struct user_namespace *parent;
	kuid_t owner;
	struct ns_common ns;
};

struct cred {
	kuid_t uid, suid, euid;
	kgid_t gid, sgid, egid;
	kernel_cap_t cap_permitted;
	struct user_namespace *user_ns;
};

enum task_dumpable {
	TASK_DUMPABLE_OWNER = 1,
};

/* Linux 7.2 (include/linux/sched/exec_state.h) */
struct task_exec_state {
	enum task_dumpable dumpable;
	struct user_namespace *user_ns;
};

struct task_struct___seen {
	unsigned int in_execve : 1;
	struct cred *real_cred;
	struct mm_struct *mm;
	struct task_exec_state *exec_state;
};

/* before 7.2: with the flags as a number, and since 6.18 as a bitmap */
struct mm_struct___number {
	unsigned long flags;
	struct user_namespace *user_ns;
};

typedef struct {
	unsigned long __mm_flags[1];
} mm_flags_t;

struct mm_struct___bitmap {
	mm_flags_t flags;
};

#pragma clang attribute pop

/* A walk out of user namespaces. */
struct outward {
	struct user_namespace *namespace;
	bool found;
};

static long step_out(__u32 index, struct outward *walk)
{
	struct user_namespace *namespace = walk->namespace;
	struct user_namespace *parent = BPF_CORE_READ(namespace, parent);

	if (!parent)
		return 1;
	walk->found = BPF_CORE_READ(parent, ns.inum) == viewer.user_namespace &&
		      BPF_CORE_READ(namespace, owner.val) == viewer.uid;
	walk->namespace = parent;
	return walk->found;
}

/* True for a namespace that the viewer has made, or one within: he has all capabilities there
 * (security/commoncap.c, cap_capable()). */
static __always_inline bool is_viewers_namespace(struct user_namespace *namespace)
{
	struct outward walk = { .namespace = namespace };

	bpf_loop(USER_NAMESPACE_LEVELS, step_out, &walk, 0);
	return walk.found;
}

static __always_inline bool is_viewers_credential(struct cred *cred)
{
	__u64 capabilities = ~0ULL;

	bpf_probe_read_kernel(&capabilities, sizeof(capabilities),
			      (char *)cred + bpf_core_field_offset(struct cred, cap_permitted));
	return BPF_CORE_READ(cred, user_ns, ns.inum) == viewer.user_namespace && !capabilities &&
	       BPF_CORE_READ(cred, uid.val) == viewer.uid && BPF_CORE_READ(cred, euid.val) == viewer.uid &&
	       BPF_CORE_READ(cred, suid.val) == viewer.uid && BPF_CORE_READ(cred, gid.val) == viewer.gid &&
	       BPF_CORE_READ(cred, egid.val) == viewer.gid && BPF_CORE_READ(cred, sgid.val) == viewer.gid;
}

static __always_inline bool is_dumpable(struct mm_struct *mm, struct task_exec_state *state)
{
	struct user_namespace *namespace = 0;
	unsigned long flags = 0;

	if (bpf_core_field_exists(struct task_struct___seen, exec_state)) {
		if (!state)
			return false;
		if (BPF_CORE_READ(state, dumpable) == TASK_DUMPABLE_OWNER)
			return true;
		return is_viewers_namespace(BPF_CORE_READ(state, user_ns));
	}
	/* at its exit: nothing is left to inspect */
	if (!mm)
		return true;
	if (bpf_core_field_exists(struct mm_struct___number, flags))
		flags = BPF_CORE_READ((struct mm_struct___number *)mm, flags);
	else if (bpf_core_field_exists(struct mm_struct___bitmap, flags))
		bpf_probe_read_kernel(&flags, sizeof(flags),
				      (char *)mm + bpf_core_field_offset(struct mm_struct___bitmap, flags));
	if ((flags & MMF_DUMPABLE_MASK) == SUID_DUMP_USER)
		return true;
	if (bpf_core_field_exists(struct mm_struct___number, user_ns))
		namespace = BPF_CORE_READ((struct mm_struct___number *)mm, user_ns);
	return is_viewers_namespace(namespace);
}

/* Global functions are verified once, on their own; where programs run with preemption off (preempt.h),
 * Linux 6.10 to 6.14 allow none. */
#ifdef VMAUDIT_PREEMPT_H
#define GLOBAL_IF_ALLOWED static
#else
#define GLOBAL_IF_ALLOWED
#endif

/* Of a task, its credentials, memory and exec_state: pointers, as numbers. */
GLOBAL_IF_ALLOWED __noinline int may_see_those(__u64 cred, __u64 mm, __u64 state)
{
	struct cred *of = (struct cred *)cred;

	/* so that there is nothing to verify */
	if (!viewer.limited)
		return 1;
	if (!of)
		return 0;
	if (!is_viewers_credential(of) && !is_viewers_namespace(BPF_CORE_READ(of, user_ns)))
		return 0;
	return is_dumpable((struct mm_struct *)mm, (struct task_exec_state *)state);
}

/* True where events of a task may be sent. */
static __always_inline bool may_see(struct task_struct *task)
{
	struct task_struct___seen *seen = (struct task_struct___seen *)task;
	struct task_exec_state *state = 0;

	if (!viewer.limited)
		return true;
	if (bpf_core_field_exists(struct task_struct___seen, exec_state))
		state = BPF_CORE_READ(seen, exec_state);
	return may_see_those((__u64)BPF_CORE_READ(seen, real_cred), (__u64)BPF_CORE_READ(seen, mm), (__u64)state);
}

/* The marks of hidden tasks stay: what they execute next may be the viewer's again. In place of the
 * lower end of the part of the stack that is known: */
#define HIDDEN_NOW ~0ULL

/* User space does not know it. */
static __always_inline bool is_unknown(struct traced_thread *thread)
{
	return thread->low == HIDDEN_NOW && !thread->high;
}

static __always_inline void make_unknown(struct traced_thread *thread)
{
	thread->low = HIDDEN_NOW;
	thread->high = 0;
}

/* True while a task gets the name of a program whose rights it has not got yet: what that program is
 * may not be the viewer's to know, and where it is, its execve says it. */
static __always_inline bool takes_a_programs_name(struct task_struct *task)
{
	struct task_struct___seen *seen = (struct task_struct___seen *)task;

	if (!viewer.limited)
		return false;
	return !bpf_core_field_exists(struct task_struct___seen, in_execve) ||
	       BPF_CORE_READ_BITFIELD_PROBED(seen, in_execve);
}

/* Of a traced task: true where nothing may be sent of it. User space is notified when something was sent
 * before. */
static __always_inline bool is_hidden(struct task_struct *task, struct traced_thread *thread)
{
	if (may_see(task))
		return false;
	if (thread->high && thread->low != HIDDEN_NOW) {
		thread->low = HIDDEN_NOW;
		count(VMAUDIT_HIDDEN);
	}
	return true;
}

#endif
