/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The rings of records, and the counters of what they had no room for.
 */
#ifndef VMAUDIT_RINGS_H
#define VMAUDIT_RINGS_H

#include "vmaudit.h"
#include "vmaudit_core.h"

/* wake the reader when this many bytes wait, not for each record */
const volatile __u64 wake_bytes = 1 << 20;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
} ring SEC(".maps");

/* Calls for which the main ring had no room: without stack, but known. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} spill SEC(".maps");

/* One entry for each CPU, in memory that vmaudit maps: to ask for them with bpf(2) keeps the kernel from
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

static __always_inline __u64 wake_flags(void)
{
	return bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) >= wake_bytes ? BPF_RB_FORCE_WAKEUP
									  : BPF_RB_NO_WAKEUP;
}

/* A record without payload, from whichever ring has room. */
static __always_inline struct vmaudit_record *reserve_plain(bool *spilled)
{
	struct vmaudit_record *record = bpf_ringbuf_reserve(&ring, sizeof(*record), 0);

	/* Each reservation is tested for 0 once: of two tests on one pointer, Linux 6.1's verifier
	 * does not carry the first one's result to the second, and sees a leak. */
	*spilled = false;
	if (record)
		return record;
	*spilled = true;
	record = bpf_ringbuf_reserve(&spill, sizeof(*record), 0);
	if (record) {
		count(VMAUDIT_SPILLED_EVENTS);
		return record;
	}
	count(VMAUDIT_LOST_EVENTS);
	return 0;
}

static __always_inline void submit_plain(struct vmaudit_record *record, bool spilled)
{
	if (spilled)
		record->flags |= VMAUDIT_SPILLED;
	bpf_ringbuf_submit(record, spilled ? BPF_RB_FORCE_WAKEUP : wake_flags());
}

#endif
