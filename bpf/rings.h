/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The ring of records, and the counters of what it had no space for.
 */
#ifndef VMAUDIT_RINGS_H
#define VMAUDIT_RINGS_H

#include "vmaudit.h"
#include "vmaudit_core.h"

/* wake the reader whenever this many bytes were written, not for each record */
const volatile __u64 wake_bytes = 1 << 20;
/* While this many bytes wait, stacks are not sent: the rest of the ring is for what the ledger needs. */
const volatile __u64 stack_limit = 12 << 20;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
} ring SEC(".maps");

/* One entry for each CPU, in memory that vmaudit maps: to read them with bpf(2) keeps the kernel from
 * running programs of function returns and perf events on that CPU meanwhile (bpf_prog_active), also when
 * vmaudit is preempted there. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct vmaudit_counts);
} counters SEC(".maps");

static __always_inline void count(enum vmaudit_counter which)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct vmaudit_counts *counts = bpf_map_lookup_elem(&counters, &cpu);

	/* atomic: where programs are preempted, another one may count on this CPU in between */
	if (counts)
		__sync_fetch_and_add(&counts->of[which], 1);
}

/* How often the reader was woken: how many times `wake_bytes` were written by then. */
__u64 woken;

static __always_inline __u64 wake_flags(void)
{
	__u64 due = bpf_ringbuf_query(&ring, BPF_RB_PROD_POS) / wake_bytes;

	/* Where two programs see the old value at once, the reader is woken twice. */
	if (due == *(volatile __u64 *)&woken)
		return BPF_RB_NO_WAKEUP;
	*(volatile __u64 *)&woken = due;
	return BPF_RB_FORCE_WAKEUP;
}

/* The next record wakes the reader. */
static __always_inline void wake_soon(void)
{
	*(volatile __u64 *)&woken = ~0ULL;
}

static __always_inline bool has_space_for_stack(void)
{
	return bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) < stack_limit;
}

/* A record without payload. */
static __always_inline struct vmaudit_record *reserve_plain(void)
{
	struct vmaudit_record *record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);

	if (!record) {
		count(VMAUDIT_LOST_EVENTS);
		wake_soon();
	}
	return record;
}

static __always_inline void submit_plain(struct vmaudit_record *record)
{
	bpf_ringbuf_submit(record, wake_flags());
}

#endif
