/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * --sample BYTES: an allocation of n bytes is reported with probability 1 - exp(-n / BYTES), as if each
 * byte were drawn with 1 / BYTES. Frees are reported of what was. Included by heap.bpf.c.
 */
#ifndef VMAUDIT_HEAP_SAMPLE_H
#define VMAUDIT_HEAP_SAMPLE_H

/* set by user space before loading; 0: everything is reported */
const volatile __u64 sample_bytes = 0;
/* exp(-i) and exp(-i / 256) in units of 2^-32 */
const volatile __u64 sample_whole[32] = {};
const volatile __u64 sample_fraction[256] = {};

/* From here on exp(-x) is less than the kernel's random numbers resolve. */
#define SAMPLE_ALWAYS 22

enum sampled_part {
	SAMPLED_NOTHING = 0,
	SAMPLED_NEW = 1,
	SAMPLED_OLD = 2,
};

struct sampled_key {
	__u64 mm;
	__u64 address;
};

/* Reported allocations that live. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 22);
	__type(key, struct sampled_key);
	__type(value, __u8);
} sampled SEC(".maps");

/* True with the probability for an allocation of this size. */
static __always_inline bool sample_draw(__u64 size)
{
	__u64 x, rest, exponential;

	if (!size)
		size = 1;
	if (size / SAMPLE_ALWAYS >= sample_bytes)
		return true;
	if (sample_bytes >> 32)
		x = (size >> 16 << 24) / (sample_bytes >> 16);
	else
		x = (size << 24) / sample_bytes;
	rest = x & 0xffff; /* of 2^-24 */
	/* 1 - r + r^2 / 2: what is left out is less than 2^-26 */
	exponential = (1ULL << 32) - (rest << 8) + (rest * rest >> 17);
	exponential = (exponential * (sample_fraction[(x >> 16) & 255] >> 1)) >> 31;
	exponential = (exponential * (sample_whole[(x >> 24) & 31] >> 1)) >> 31;
	return bpf_get_prandom_u32() >= exponential;
}

/* False where the address was not reported. */
static __always_inline bool sample_forget(struct task_struct *task, __u64 address)
{
	struct sampled_key key = { .address = address };

	if (!sample_bytes)
		return true;
	key.mm = (__u64)mm_of(task);
	return !bpf_map_delete_elem(&sampled, &key);
}

/* False where there is no space to remember it. */
static __always_inline bool sample_keep(struct task_struct *task, __u64 address)
{
	struct sampled_key key = { .address = address };
	__u8 present = 1;

	if (!sample_bytes)
		return true;
	key.mm = (__u64)mm_of(task);
	return !bpf_map_update_elem(&sampled, &key, &present, BPF_ANY);
}

/* What of a call is reported: the new block, the end of the old one, nothing. */
static __always_inline __u8 sample_begin(struct task_struct *task, __u64 old, __u64 size, bool late)
{
	__u8 parts;

	if (!sample_bytes)
		return SAMPLED_NEW | SAMPLED_OLD;
	parts = late || sample_draw(size) ? SAMPLED_NEW : SAMPLED_NOTHING;
	if (!parts)
		heap_count(VMAUDIT_HEAP_SKIPPED);
	if (old && sample_forget(task, old))
		parts |= SAMPLED_OLD;
	return parts;
}

/* Where the size is known only now. */
static __always_inline void sample_late(__u8 size_at, __u64 size, __u8 *parts)
{
	if (!sample_bytes || size_at < VMAUDIT_WHERE_RETURNED || size_at == VMAUDIT_WHERE_GLOBAL || sample_draw(size))
		return;
	*parts &= ~SAMPLED_NEW;
	heap_count(VMAUDIT_HEAP_SKIPPED);
}

#endif
