/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The table of functions, the counters, and what is kept of a thread's outermost call. Included by heap.bpf.c.
 */
#ifndef VMAUDIT_HEAP_CALL_H
#define VMAUDIT_HEAP_CALL_H

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, VMAUDIT_HEAP_FUNCTIONS);
	__type(key, __u32);
	__type(value, struct vmaudit_heap_function);
} functions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY); /* as `counters` in rings.h */
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct vmaudit_heap_counts);
} heap_counters SEC(".maps");

struct heap_event {
	__u64 op;
	__u64 function;
	__u64 flags;
	__u64 args[4];
	__u64 code; /* --combined: rules are requested for its stack */
	__u64 frames; /* an interpreter's were sent before it */
};

/* A thread's outermost call, from its entry to its return; sp is 0 where there is none. */
struct heap_call {
	__u64 sp; /* at entry: where the return address is */
	__u64 size;
	__u64 old;
	__u64 context;
	__u64 result; /* its value, or its address, by `result_at` */
	__u64 parent;
	__u64 name;
	__u32 function;
	__u8 action;
	__u8 size_at; /* where they are if not known yet: enum vmaudit_heap_where */
	__u8 result_at;
	__u8 sampled; /* enum sampled_part */
	__u8 unmaps;  /* in a call that unmaps code */
	__u8 taken;   /* the block that is resized is `moved`: counted in the kernel */
	struct counted_block moved;
	/* what its return reports; here, because BPF's stack is small */
	struct heap_event event;
	struct counted_block block, stale;
	/* the newest free, which has no return probe */
	__u64 freed;
	__u64 freed_sp;
	__u64 freed_by;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct heap_call);
} calls SEC(".maps");

static __always_inline void heap_count(enum vmaudit_heap_counter which)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct vmaudit_heap_counts *counts = bpf_map_lookup_elem(&heap_counters, &cpu);

	if (counts)
		__sync_fetch_and_add(&counts->of[which], 1);
}

#endif
