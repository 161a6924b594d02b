/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Stacks that user space knows: of them, their numbers are sent.
 *
 * Where every frame is found by fixed offsets from the stack pointer or from a register that was saved, a stack is
 * identified by where the call came from, by how much stack there is, and by the return addresses and the saved registers
 * at their places (src/unwind/memo.rs): all of it is compared here, so that an equal stack is the same stack, and nothing
 * else is taken for it.
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

/* Whether all words are as they were. A loop in the program: a call of bpf_loop() for each frame took a third of the whole
 * program's time. */
static __always_inline bool same_words(struct vmaudit_known_stack *known, struct stack_copy *copy, __u64 words, __u64 sp)
{
	__u64 distance, relative;
	int i;

	for (i = 0; i < VMAUDIT_KNOWN_WORDS; i++) {
		if (i >= words)
			return true;
		distance = known->distances[i];
		relative = distance & VMAUDIT_KNOWN_RELATIVE;
		distance -= relative;
		if (distance > VMAUDIT_KNOWN_SPAN)
			return false;
		/* no branch, which the verifier would follow twice at each word */
		if (*(__u64 *)(copy->bytes + distance) - (sp & -relative) != known->expected[i])
			return false;
	}
	return true;
}

/* What user space changes meanwhile is not known: its version is odd, or another one afterwards. */
static __always_inline __u64 version_of(struct vmaudit_known_stack *known)
{
	__u64 version;

	ARCH_LOAD_IN_ORDER(version, known->version);
	return version;
}

static __always_inline __u64 compare_stack(struct vmaudit_known_stack *known, struct stack_copy *copy, __u64 sp)
{
	__u64 version = version_of(known), number = known->number, words = known->words, span = known->span;

	if (version & 1 || words > VMAUDIT_KNOWN_WORDS || span > VMAUDIT_KNOWN_SPAN)
		return 0;
	if (bpf_probe_read_user(copy->bytes, span, (void *)sp))
		return 0;
	return same_words(known, copy, words, sp) && version_of(known) == version ? number : 0;
}

/* The number of a stack of which there are `depth` bytes; 0: not known. Global, so that it is verified once; all that it
 * needs is handed over, because another lookup for each call takes longer. */
__noinline __u64 find_known_stack(struct extra *extra, __u64 ip, __u64 sp, __u64 depth, __u64 bp)
{
	struct vmaudit_known_stack *known;
	struct stack_copy *copy;
	__u64 mm, hash, number = 0;
	__u32 way, at = 0;

	if (!extra)
		return 0;
	mm = extra->mm;
	copy = bpf_map_lookup_elem(&stack_copies, &at);
	/* preempted by another task that is here, too */
	if (!copy || copy->busy)
		return 0;
	*(volatile __u64 *)&copy->busy = 1;
	hash = (mm ^ (ip << 20) ^ depth) * VMAUDIT_KNOWN_HASH;
	for (way = 0; way < VMAUDIT_KNOWN_WAYS && !number; way++) {
		at = ((hash >> 40) + way) & (VMAUDIT_KNOWN_STACKS - 1);
		known = bpf_map_lookup_elem(&known_stacks, &at);
		if (!known || known->mm != mm || known->pid != extra->pid || known->ip != ip || known->depth != depth)
			continue;
		if (known->by_frame_pointer && bp - sp != known->frame_pointer)
			continue;
		number = compare_stack(known, copy, sp);
	}
	*(volatile __u64 *)&copy->busy = 0;
	return number;
}

#endif
