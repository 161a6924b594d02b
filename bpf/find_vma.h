/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The mapping around an address, in the current address space.
 */
#ifndef VMAUDIT_FIND_VMA_H
#define VMAUDIT_FIND_VMA_H

#include "vmaudit_core.h"

struct found_vma {
	__u64 start;
	__u64 end;
	__u64 flags;
	struct file *file;
};

static long remember_vma(struct task_struct *task, struct vm_area_struct *vma, struct found_vma *found)
{
	found->start = vma->vm_start;
	found->end = vma->vm_end;
	found->flags = vma->vm_flags;
	found->file = BPF_CORE_READ(vma, vm_file);
	return 0;
}

#define LOOKUPS 64

struct lookup {
	struct task_struct *task;
	__u64 at;
	struct found_vma found;
	bool done;
};

static long try_lookup(__u32 index, struct lookup *lookup)
{
	struct task_struct *task = bpf_get_current_task_btf();

	lookup->done = !bpf_find_vma(task, lookup->at, remember_vma, &lookup->found, 0);
	return lookup->done;
}

enum patience {
	TRY_ONCE,
	INSIST,
};

/* bpf_find_vma only tries the mmap lock: INSIST for some microseconds while other threads of the
 * process map and unmap. */
static __always_inline bool find_vma(struct task_struct *task, __u64 at, enum patience patience,
				     struct found_vma *found)
{
	struct lookup lookup = {};

	if (!bpf_find_vma(task, at, remember_vma, found, 0))
		return true;
	if (patience == TRY_ONCE)
		return false;
	lookup.at = at;
	bpf_loop(LOOKUPS, try_lookup, &lookup, 0);
	*found = lookup.found;
	return lookup.done;
}

#endif
