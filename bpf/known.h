/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Stacks that user space knows: of them, their numbers are sent.
 *
 * Where every frame is found at a fixed distance from the stack pointer, a stack is told by where the call
 * came from, by how much stack there is, and by the return addresses at those distances (src/unwind/memo.rs):
 * all of it is compared here, so that an equal stack is the same stack, and nothing else is taken for it.
 */
#ifndef VMAUDIT_KNOWN_H
#define VMAUDIT_KNOWN_H

#include "record.h"
#include "rings.h"
#include "threads.h"
#include "vmaudit.h"

/* User space writes this map in its own memory: a bpf(2) would keep programs of perf events on that CPU from
 * running meanwhile. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, VMAUDIT_KNOWN_STACKS);
	__type(key, __u32);
	__type(value, struct vmaudit_known_stack);
} known_stacks SEC(".maps");

struct stack_copy {
	__u64 busy;
	char bytes[VMAUDIT_KNOWN_SPAN + 8];
};

/* Where stacks are compared. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stack_copy);
} stack_copies SEC(".maps");

struct comparison {
	struct vmaudit_known_stack *known;
	struct stack_copy *copy;
	__u64 equal;
};

static long compare_return(__u32 index, struct comparison *comparison)
{
	struct vmaudit_known_stack *known = comparison->known;
	__u64 distance;

	if (index >= VMAUDIT_KNOWN_FRAMES)
		return 1;
	distance = known->distances[index];
	if (distance > VMAUDIT_KNOWN_SPAN)
		return 1;
	if (*(__u64 *)(comparison->copy->bytes + distance) != known->returns[index])
		return 1;
	comparison->equal += 1;
	return 0;
}

/* What user space changes meanwhile is not known: its version is odd, or another one afterwards. A full
 * barrier, because some machines read out of order. */
static __always_inline __u64 version_of(struct vmaudit_known_stack *known)
{
	return __sync_fetch_and_add(&known->version, 0);
}

static __always_inline __u64 compare_stack(struct vmaudit_known_stack *known, struct stack_copy *copy, __u64 sp)
{
	struct comparison comparison = { .known = known, .copy = copy };
	__u64 version = version_of(known), number = known->number, frames = known->frames, span = known->span;

	if (version & 1 || frames > VMAUDIT_KNOWN_FRAMES || span > VMAUDIT_KNOWN_SPAN)
		return 0;
	if (bpf_probe_read_user(copy->bytes, span, (void *)sp))
		return 0;
	bpf_loop(frames, compare_return, &comparison, 0);
	return comparison.equal == frames && version_of(known) == version ? number : 0;
}

/* Sets the number of the current thread's stack, which was measured; 0: not known. Global, so that it is
 * verified once. */
__noinline int find_known_stack(struct extra *extra)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__u64 ip = regs->ip, sp = regs->sp, mm, depth, hash, number = 0;
	struct vmaudit_known_stack *known;
	struct stack_copy *copy;
	__u32 way, at = 0;

	if (!extra || !thread)
		return 0;
	extra->stack = 0;
	mm = extra->mm;
	depth = *(volatile __u64 *)&thread->wanted;
	copy = bpf_map_lookup_elem(&stack_copies, &at);
	/* preempted by another task that is here, too */
	if (!copy || copy->busy)
		return 0;
	*(volatile __u64 *)&copy->busy = 1;
	hash = (mm ^ (ip << 20) ^ depth) * VMAUDIT_KNOWN_HASH;
	for (way = 0; way < VMAUDIT_KNOWN_WAYS && !number; way++) {
		at = ((hash >> 40) + way) & (VMAUDIT_KNOWN_STACKS - 1);
		known = bpf_map_lookup_elem(&known_stacks, &at);
		if (!known || known->mm != mm || known->ip != ip || known->depth != depth)
			continue;
		number = compare_stack(known, copy, sp);
	}
	*(volatile __u64 *)&copy->busy = 0;
	extra->stack = number;
	return 0;
}

#endif
