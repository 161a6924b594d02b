/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which address space has an interpreter: that is seen when it maps or executes such a file, so that its first call
 * has its frames.
 */
#ifndef VMAUDIT_INTERPRETERS_H
#define VMAUDIT_INTERPRETERS_H

#include "managed.h"

#define PROT_EXEC 4

struct file_search {
	struct vmaudit_interpreter_files *files;
	__u64 ino;
	__u32 dev;
	__u32 found; /* index + 1 */
};

static long compare_file(__u32 index, struct file_search *search)
{
	struct vmaudit_interpreter_file *file;

	if (index >= VMAUDIT_INTERPRETER_FILES)
		return 1;
	file = file_at(search->files, index);
	if (file->ino != search->ino || file->dev != search->dev)
		return 0;
	search->found = index + 1;
	return 1;
}

/* A file's code is in the address space from now on: at `start` is, or would be, its first byte, mapped from `offset`
 * on; 0: its code is at mm->start_code. A page of it that is mapped once more (as libffi does for its trampolines) is
 * no other place. Without an interpreter in it, what an executed file replaces is forgotten. */
__noinline int note_code(__u64 ino, __u32 dev, __u64 start, __u64 offset)
{
	struct mm_struct *mm = mm_of(bpf_get_current_task_btf());
	struct file_search search = { .files = files_with_interpreters(), .ino = ino, .dev = dev };
	struct vmaudit_interpreter interpreter = {};
	struct vmaudit_interpreter_file *file;
	__u64 key = (__u64)mm;
	__u32 index;

	if (!search.files || !mm)
		return 0;
	bpf_loop(search.files->count, compare_file, &search, 0);
	index = search.found - 1;
	if (index >= VMAUDIT_INTERPRETER_FILES) {
		if (!start)
			bpf_map_delete_elem(&interpreters, &key);
		return 0;
	}
	file = file_at(search.files, index);
	if (start && offset != file->code_offset)
		return 0;
	/* a library in a process that has an interpreter, or is such a program itself */
	if (start && file->left_stacks.thread && bpf_map_lookup_elem(&interpreters, &key))
		return 0;
	interpreter.file = index;
	if (start)
		interpreter.runtime = start + file->from_start;
	else
		interpreter.runtime = BPF_CORE_READ(mm, start_code) + file->from_code;
	bpf_map_update_elem(&interpreters, &key, &interpreter, BPF_ANY);
	search.files->mapped = 1;
	return 0;
}

/* The child has what its parent has. */
static __always_inline void note_copy(__u64 mm, __u64 child)
{
	struct vmaudit_interpreter *found;

	if (!is_any_mapped())
		return;
	found = bpf_map_lookup_elem(&interpreters, &mm);
	if (found)
		bpf_map_update_elem(&interpreters, &child, found, BPF_ANY);
	else
		bpf_map_delete_elem(&interpreters, &child);
}

#endif
