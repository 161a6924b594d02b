/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Frames of an interpreter, read while the thread that has them is in its call: later they are gone.
 *
 * User space says in which files interpreters are, and where they keep what (VMAUDIT_INTERPRETER_FILES); which
 * process has one, interpreters.h.
 *
 * All is read from the process' own memory, and may be anything: each object is known by its type, and what is
 * not as it should be ends the list as broken.
 */
#ifndef VMAUDIT_MANAGED_H
#define VMAUDIT_MANAGED_H

#include "record.h"
#include "rings.h"
#include "stack.h"
#include "threads.h"

#define MOST_INTERPRETERS 4096
#define MOST_THREADS 4096   /* that are searched for one's own */
#define MOST_EXAMINED 4096  /* frames, for where the last one belongs */
#define MOST_OWN 4          /* interpreters that a thread is in */
#define FRAME_HEAD 128      /* space for a frame's first bytes, and how many are read */
#define FRAME_READ 80
#define CODE_HEAD 256       /* and of what it runs */
#define CODE_READ 144
#define MOST_LINES (64 << 10)

/* User space writes it in its own memory, as `known_stacks`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct vmaudit_interpreter_files);
} interpreter_files SEC(".maps");

/* By address space. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MOST_INTERPRETERS);
	__type(key, __u64);
	__type(value, struct vmaudit_interpreter);
} interpreters SEC(".maps");

#define SENT_CODES 32768

/* The numbers of the codes that were sent last, each at the place that it gives: two that have the same are sent
 * alternately. An array, because it is read for each frame. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SENT_CODES);
	__type(key, __u32);
	__type(value, __u64);
} sent_codes SEC(".maps");

/* Where frames are put together. Of one CPU. */
struct managed_copy {
	__u64 busy;
	__u64 frame_head[FRAME_HEAD / 8];
	__u64 code_head[CODE_HEAD / 8];
	__u64 own[MOST_OWN];
	__u64 found;      /* of them */
	__u64 at_own;
	__u64 interpreter, thread; /* that are read next */
	__u64 frame, run;
	__u64 last_code, last_number;
	__u64 unsent;     /* there is code among `codes` that was not sent yet */
	__u64 open;       /* since the last frame with an `under` */
	__u64 count;
	__u64 end;        /* enum vmaudit_managed_end */
	__u64 runtime;
	__u64 mm;
	__u64 control_block;
	struct vmaudit_record record;
	struct vmaudit_managed_frame frames[VMAUDIT_MANAGED_FRAMES];
	__u64 codes[VMAUDIT_MANAGED_FRAMES]; /* that `frames` run */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct managed_copy);
} managed_copies SEC(".maps");

static __always_inline struct vmaudit_interpreter_files *files_with_interpreters(void)
{
	struct vmaudit_interpreter_files *files;
	__u32 zero = 0;

	files = bpf_map_lookup_elem(&interpreter_files, &zero);
	return files && files->count ? files : 0;
}

/* The mask is the verifier's: clang would drop it where it knows as much. */
static __always_inline struct vmaudit_interpreter_file *file_at(struct vmaudit_interpreter_files *files, __u64 index)
{
	barrier_var(index);
	return &files->file[index & (VMAUDIT_INTERPRETER_FILES - 1)];
}

static __always_inline __u64 user_word(__u64 at)
{
	__u64 word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)at);
	return word;
}

/* Whether a walk is worth it at all. */
static __always_inline bool is_any_mapped(void)
{
	struct vmaudit_interpreter_files *files;
	__u32 zero = 0;

	files = bpf_map_lookup_elem(&interpreter_files, &zero);
	return files && files->mapped;
}

struct code_record {
	struct vmaudit_record record;
	char file[VMAUDIT_CODE_NAME_MAX];
	char name[VMAUDIT_CODE_NAME_MAX];
};

static __always_inline __u64 type_of(struct vmaudit_layout *layout, __u64 object)
{
	return user_word(object + layout->object_type);
}

/* Copies a string's characters, as many as fit. What they are goes into the record's argument. */
static __always_inline __u64 copy_text(struct vmaudit_layout *layout, __u64 text, __u64 type, char *to)
{
	__u64 length, state, width, bytes;

	if (type_of(layout, text) != type)
		return 0;
	length = user_word(text + layout->text_length);
	state = user_word(text + layout->text_state);
	width = state >> 2 & 7;
	if (!(state & 1 << 5) || (width != 1 && width != 2 && width != 4))
		return 0;
	bytes = length * width;
	if (length > VMAUDIT_CODE_NAME_MAX || bytes > VMAUDIT_CODE_NAME_MAX)
		bytes = VMAUDIT_CODE_NAME_MAX;
	text += state & 1 << 6 ? layout->text_ascii : layout->text_other;
	CLAMP(bytes, VMAUDIT_CODE_NAME_MAX);
	if (bpf_probe_read_user(to, bytes, (void *)text))
		return 0;
	return bytes | width << 32;
}

#define SEND_CODE(most)                                                                     \
	if (lines <= (most)) {                                                              \
		struct {                                                                    \
			struct code_record head;                                            \
			char lines[most];                                                   \
		} *out = bpf_ringbuf_reserve(&ring, sizeof(*out), 0);                       \
		__u64 length = lines;                                                       \
		if (!out)                                                                   \
			return 1;                                                           \
		CLAMP(length, most);                                                        \
		identify(&out->head.record, task, thread, VMAUDIT_OP_CODE);                 \
		out->head.record.aux[0] = number;                                           \
		out->head.record.args[0] = (__u32)user_word(code + layout->code_first_line); \
		out->head.record.args[1] = copy_text(layout, file, text_type, out->head.file); \
		out->head.record.args[2] = copy_text(layout, name, text_type, out->head.name); \
		out->head.record.args[3] = length;                                          \
		if (!has_lines || bpf_probe_read_user(out->lines, length, (void *)table)) { \
			length = 0;                                                         \
			out->head.record.args[3] = ~0ULL;                                   \
		}                                                                           \
		out->head.record.args[4] = (__u32)user_word(code + layout->code_first_traceable); \
		out->head.record.payload = VMAUDIT_CODE_LINES + length;                     \
		bpf_ringbuf_submit(out, BPF_RB_NO_WAKEUP);                                  \
		return 0;                                                                   \
	}

/* 0: sent. Global, so that it is verified once. */
__noinline int send_code(__u64 code, __u64 runtime, __u32 index, __u64 number)
{
	struct vmaudit_interpreter_files *files = files_with_interpreters();
	struct task_struct *task = bpf_get_current_task_btf();
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct vmaudit_interpreter_file *about;
	struct vmaudit_layout *layout;
	__u64 file, name, table, lines, text_type;
	bool has_lines = true;

	if (!files || !thread || index >= VMAUDIT_INTERPRETER_FILES)
		return 1;
	about = file_at(files, index);
	layout = &about->layout;
	text_type = runtime + about->text_type;
	file = user_word(code + layout->code_names);
	name = user_word(code + layout->code_names + 16);
	table = user_word(code + layout->code_names + 24);
	lines = user_word(table + layout->object_size);
	if (type_of(layout, table) != runtime + about->bytes_type || lines > MOST_LINES) {
		has_lines = false;
		lines = 0;
	}
	table += layout->bytes_data;
	SEND_CODE(512)
	SEND_CODE(4096)
	SEND_CODE(MOST_LINES)
	return 1;
}

/* A number for what a frame runs: of its address, and of what would be another one if other code were there
 * now. 0: it is no code. */
static __always_inline __u64 number_of(struct managed_copy *copy, struct vmaudit_interpreter_file *about, __u64 code)
{
	struct vmaudit_layout *layout = &about->layout;
	__u64 *head = copy->code_head, number = copy->mm ^ code;
	__u32 names = layout->code_names >> 3 & 15, i;

	if (bpf_probe_read_user(head, CODE_READ, (void *)code))
		return 0;
	if (head[layout->object_type >> 3 & 15] != copy->runtime + about->code_type)
		return 0;
	number = (number ^ head[layout->object_size >> 3 & 15]) * 0x9e3779b97f4a7c15ULL;
	number ^= number >> 29;
	for (i = 0; i < 4; i++) {
		number = (number ^ head[(names + i) & 31]) * 0x9e3779b97f4a7c15ULL;
		number ^= number >> 29;
	}
	number = (number ^ head[layout->code_first_line >> 3 & 15]) * 0x9e3779b97f4a7c15ULL;
	return (number ^ number >> 29) | 1;
}

struct managed_walk {
	struct vmaudit_interpreter_file *about;
	struct managed_copy *copy;
	__u32 index;
};

/* The states of this thread, of all interpreters that it is in. */
static long find_own(__u32 index, struct managed_walk *walk)
{
	struct vmaudit_layout *layout = &walk->about->layout;
	struct managed_copy *copy = walk->copy;
	__u64 thread = copy->thread;

	if (!thread) {
		if (!copy->interpreter)
			return 1;
		copy->thread = user_word(copy->interpreter + layout->interpreter_threads);
		copy->interpreter = user_word(copy->interpreter + layout->interpreter_next);
		return 0;
	}
	if (user_word(thread + layout->thread_id) == copy->control_block && copy->found < MOST_OWN) {
		copy->own[copy->found & (MOST_OWN - 1)] = thread;
		copy->found += 1;
	}
	copy->thread = user_word(thread + layout->thread_next);
	return 0;
}

/* The state that was found before is still in its interpreter's list, the thread's, and the only one. */
static __always_inline bool is_still_own(struct managed_copy *copy, struct vmaudit_layout *layout, __u64 thread)
{
	__u64 interpreter = copy->interpreter, previous, next;

	if (!thread || !interpreter || user_word(interpreter + layout->interpreter_next))
		return false;
	previous = user_word(thread + layout->thread_previous);
	next = previous ? user_word(previous + layout->thread_next) :
			  user_word(interpreter + layout->interpreter_threads);
	return next == thread && user_word(thread + layout->thread_id) == copy->control_block;
}

static __always_inline void close_run(struct managed_copy *copy, __u64 under)
{
	__u64 last = copy->count - 1;

	if (copy->open && last < VMAUDIT_MANAGED_FRAMES)
		copy->frames[last & (VMAUDIT_MANAGED_FRAMES - 1)].under = under;
	copy->open = 0;
}

/* Goes on with the innermost frame of the next of the thread's states. */
static __always_inline bool begin_own(struct managed_copy *copy, struct vmaudit_layout *layout)
{
	__u64 thread;

	if (copy->at_own >= copy->found)
		return false;
	thread = copy->own[copy->at_own & (MOST_OWN - 1)];
	copy->at_own += 1;
	copy->open = 0;
	copy->frame = user_word(thread + layout->thread_frame);
	if (layout->run_frame != VMAUDIT_NOT_THERE) {
		copy->run = copy->frame;
		copy->frame = user_word(copy->run + layout->run_frame);
	}
	return true;
}

static long take_frame(__u32 index, struct managed_walk *walk)
{
	struct vmaudit_layout *layout = &walk->about->layout;
	struct managed_copy *copy = walk->copy;
	struct vmaudit_managed_frame *out;
	__u64 at = copy->frame, code, number, *sent;
	char *head = (char *)copy->frame_head;
	__u32 slot;

	if (!at)
		return copy->end != VMAUDIT_MANAGED_WHOLE || !begin_own(copy, layout);
	if (bpf_probe_read_user(head, FRAME_READ, (void *)at)) {
		copy->end = VMAUDIT_MANAGED_BROKEN;
		return 1;
	}
	copy->frame = copy->frame_head[layout->frame_previous >> 3 & 15];
	if ((__u8)head[layout->frame_owner & 127] >= layout->foreign_owner) {
		close_run(copy, at);
		return copy->end != VMAUDIT_MANAGED_WHOLE;
	}
	if (copy->count >= VMAUDIT_MANAGED_FRAMES) {
		/* where the ones before belong is still to be found */
		copy->end = VMAUDIT_MANAGED_CUT;
		if (layout->frame_entry != VMAUDIT_NOT_THERE)
			close_run(copy, copy->run);
		return !copy->open;
	}
	code = copy->frame_head[layout->frame_code >> 3 & 15] & ~7ULL;
	if (code != copy->last_code) {
		number = number_of(copy, walk->about, code);
		if (!number) {
			copy->end = VMAUDIT_MANAGED_BROKEN;
			return 1;
		}
		slot = number >> 40 & (SENT_CODES - 1);
		sent = bpf_map_lookup_elem(&sent_codes, &slot);
		if (!sent)
			return 1;
		if (*sent != number)
			copy->unsent = 1;
		copy->last_code = code;
		copy->last_number = number;
	}
	number = copy->last_number;
	copy->codes[copy->count & (VMAUDIT_MANAGED_FRAMES - 1)] = code;
	out = &copy->frames[copy->count & (VMAUDIT_MANAGED_FRAMES - 1)];
	out->under = 0;
	out->code = number;
	out->at = copy->frame_head[layout->frame_instruction >> 3 & 15] - code - layout->code_bytes;
	copy->count += 1;
	copy->open = 1;
	if (layout->frame_entry != VMAUDIT_NOT_THERE && head[layout->frame_entry & 127]) {
		close_run(copy, copy->run);
		copy->run = user_word(copy->run + layout->run_previous);
		if (copy->frame && user_word(copy->run + layout->run_frame) != copy->frame) {
			copy->end = VMAUDIT_MANAGED_BROKEN;
			return 1;
		}
	}
	return 0;
}

/* Sends what one of the frames runs, where it was not sent. Not from take_frame(): Linux 6.1 counts the stack of all
 * functions that call each other, and has 512 bytes for it. */
static long send_unsent(__u32 index, struct managed_walk *walk)
{
	struct managed_copy *copy = walk->copy;
	__u64 number, *sent;
	__u32 slot;

	if (index >= copy->count)
		return 1;
	number = copy->frames[index & (VMAUDIT_MANAGED_FRAMES - 1)].code;
	slot = number >> 40 & (SENT_CODES - 1);
	sent = bpf_map_lookup_elem(&sent_codes, &slot);
	if (!sent || *sent == number)
		return 0;
	if (send_code(copy->codes[index & (VMAUDIT_MANAGED_FRAMES - 1)], copy->runtime, walk->index, number)) {
		count(VMAUDIT_LOST_MANAGED);
		copy->end = VMAUDIT_MANAGED_BROKEN;
		return 1;
	}
	*sent = number;
	return 0;
}

/* Sends the frames that an interpreter has on the current thread's stack, which is at `sp`, before the record that
 * they belong to. 1: they were sent. Global, so that it is verified once. */
__noinline int send_managed(__u64 sp)
{
	struct vmaudit_interpreter_files *files = files_with_interpreters();
	struct task_struct *task = bpf_get_current_task_btf();
	struct traced_thread *thread = bpf_task_storage_get(&threads, task, 0, 0);
	struct vmaudit_interpreter *interpreter;
	struct vmaudit_layout *layout;
	struct managed_walk walk = {};
	struct managed_copy *copy;
	__u64 mm = (__u64)mm_of(task), key = mm, bytes;
	__u32 index, zero = 0;
	int sent = 0;

	if (!files || !thread)
		return 0;
	interpreter = bpf_map_lookup_elem(&interpreters, &key);
	copy = bpf_map_lookup_elem(&managed_copies, &zero);
	if (!interpreter || !copy)
		return 0;
	index = interpreter->file;
	if (index >= VMAUDIT_INTERPRETER_FILES)
		return 0;
	/* or preempted by another task that is here, too */
	if (!has_space_for_stack() || copy->busy) {
		count(VMAUDIT_LOST_MANAGED);
		return 0;
	}
	*(volatile __u64 *)&copy->busy = 1;
	walk.about = file_at(files, index);
	walk.copy = copy;
	walk.index = index;
	layout = &walk.about->layout;
	copy->mm = mm;
	copy->runtime = interpreter->runtime;
	copy->control_block = ARCH_THREAD_POINTER(task);
	copy->last_code = copy->last_number = 0;
	copy->unsent = copy->found = copy->at_own = copy->count = copy->open = copy->frame = copy->run = copy->thread = 0;
	copy->end = VMAUDIT_MANAGED_WHOLE;
	copy->interpreter = user_word(copy->runtime + layout->interpreters);
	if (is_still_own(copy, layout, thread->managed)) {
		copy->own[0] = thread->managed;
		copy->found = 1;
	} else {
		bpf_loop(MOST_THREADS, find_own, &walk, 0);
		thread->managed = copy->found == 1 ? copy->own[0] : 0;
	}
	if (copy->found) {
		bpf_loop(MOST_EXAMINED, take_frame, &walk, 0);
		if (copy->unsent)
			bpf_loop(VMAUDIT_MANAGED_FRAMES, send_unsent, &walk, 0);
		identify(&copy->record, task, thread, VMAUDIT_OP_MANAGED);
		copy->record.args[0] = copy->count;
		copy->record.args[1] = copy->end;
		copy->record.args[2] = sp;
		bytes = copy->count * sizeof(struct vmaudit_managed_frame);
		copy->record.payload = bytes;
		bytes += sizeof(struct vmaudit_record);
		CLAMP(bytes, sizeof(copy->record) + sizeof(copy->frames));
		if (copy->count || copy->end) {
			sent = !bpf_ringbuf_output(&ring, &copy->record, bytes, BPF_RB_NO_WAKEUP);
			if (!sent)
				count(VMAUDIT_LOST_MANAGED);
		}
	}
	*(volatile __u64 *)&copy->busy = 0;
	return sent;
}

#endif
