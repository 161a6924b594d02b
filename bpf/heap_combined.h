/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * --combined: allocations are counted here, by stack, and not sent one by one. The stack is walked by the
 * rules that user space has published: those of the unwind tables that are a constant distance from the stack
 * or frame pointer. A walk that a rule is missing for, or whose frames need more than that, leaves the
 * allocation to the ring, as without --combined, and so does a full table. Included by heap.bpf.c.
 */
#ifndef VMAUDIT_HEAP_COMBINED_H
#define VMAUDIT_HEAP_COMBINED_H

#include <asm/unistd.h>

/* set by user space before loading */
const volatile bool combined = false;

/* Numbers that no two address spaces have: an mm_struct's address is another one's later. */
struct space_ids {
	__u64 space;
	__u64 code; /* another one as soon as code is unmapped: rules and stacks are void then */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 16);
	__type(key, __u64);
	__type(value, struct space_ids);
} spaces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 18);
	__type(key, struct vmaudit_heap_rule_key);
	__type(value, struct vmaudit_heap_rule);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 18);
	__type(key, struct vmaudit_heap_site_key);
	__type(value, struct vmaudit_heap_site);
} sites SEC(".maps");

struct block_key {
	__u64 space;
	__u64 address;
};

/* What is counted and outstanding; never one that user space was sent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 22);
	__type(key, struct block_key);
	__type(value, struct counted_block);
} blocks SEC(".maps");

static __always_inline __u64 new_number(void)
{
	return bpf_ktime_get_ns() << 10 | (bpf_get_smp_processor_id() & 1023);
}

static __always_inline struct space_ids *ids_of(struct task_struct *task, bool make)
{
	__u64 mm = (__u64)mm_of(task);
	struct space_ids *ids = bpf_map_lookup_elem(&spaces, &mm);
	struct space_ids fresh;

	if (ids || !make)
		return ids;
	fresh.space = new_number();
	fresh.code = fresh.space;
	bpf_map_update_elem(&spaces, &mm, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&spaces, &mm);
}

#define MAP_IS_FIXED 16 /* MAP_FIXED */
#define NOTHING_MAPPED 2 /* ENOENT */
#define MOST_FRAMES 128
#define CHAINED 8

struct walk {
	__u64 code;
	__u64 address; /* as in struct vmaudit_heap_rule_key */
	__u64 sp, bp;
	__u64 first, second;
	__u64 trampoline;
	struct return_instance *next;
	__u64 done;
};

/* The return address that a return probe (anybody's) has replaced at `at`; 0: not to be found. */
static __always_inline __u64 replaced_return(struct walk *walk, __u64 at)
{
	struct return_instance *instance;
	__u64 stack, found = walk->trampoline;
	int i;

	/* innermost first, in the order of the walk; several of one place are tail calls */
	for (i = 0; i < CHAINED; i++) {
		instance = walk->next;
		if (!instance)
			return 0;
		stack = BPF_CORE_READ(instance, stack);
		if (stack > at)
			return 0;
		walk->next = BPF_CORE_READ(instance, next);
		if (stack != at)
			continue;
		found = BPF_CORE_READ(instance, orig_ret_vaddr);
		if (found != walk->trampoline)
			return found;
	}
	return 0;
}

static long walk_frame(__u32 index, struct walk *walk)
{
	struct vmaudit_heap_rule_key key = { .code = walk->code, .address = walk->address };
	struct vmaudit_heap_rule *rule = bpf_map_lookup_elem(&rules, &key);
	__u64 cfa, at, word = 0;

	if (!rule)
		return 1;
	walk->first = (walk->first ^ walk->address) * 0x9e3779b97f4a7c15ULL;
	walk->first ^= walk->first >> 32;
	walk->second = (walk->second + walk->address) * 0xc2b2ae3d27d4eb4fULL;
	walk->second ^= walk->second >> 29;
	if (rule->kind == VMAUDIT_RULE_ROOT) {
		walk->done = 1;
		return 1;
	}
	cfa = (rule->kind == VMAUDIT_RULE_BP ? walk->bp : walk->sp) + (__s64)rule->cfa;
	/* a caller's frame lies above its callee's */
	if (cfa <= walk->sp)
		return 1;
	if (rule->bp) {
		at = cfa + (__s64)rule->bp * 8;
		if (at < walk->sp || bpf_probe_read_user(&word, sizeof(word), (void *)at))
			return 1;
		walk->bp = word;
	}
	if (bpf_probe_read_user(&word, sizeof(word), (void *)(cfa - 8)))
		return 1;
	if (walk->trampoline && word == walk->trampoline)
		word = replaced_return(walk, cfa - 8);
	if (word < ARCH_PAGE_SIZE)
		return 1;
	walk->address = word << 1;
	walk->sp = cfa;
	return 0;
}

/* True where the stack was walked to its end: then `key` is that stack's. */
static __noinline bool walk_stack(struct pt_regs *regs, struct vmaudit_heap_site_key *key)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct uprobe_task *probed;
	struct walk walk = {
		.code = key->code,
		.address = regs->ip << 1 | 1,
		.sp = regs->sp,
		.bp = regs->bp,
	};

	if (bpf_core_field_exists(struct task_struct, utask)) {
		probed = BPF_CORE_READ(task, utask);
		if (probed) {
			walk.next = BPF_CORE_READ(probed, return_instances);
			walk.trampoline = trampoline_of(task);
		}
	}
	bpf_loop(MOST_FRAMES, walk_frame, &walk, 0);
	key->first = walk.first;
	key->second = walk.second;
	return walk.done;
}

/* Takes a counted block out; it is outstanding still. */
static __always_inline bool combined_take(struct task_struct *task, __u64 address, struct counted_block *out)
{
	struct space_ids *ids = ids_of(task, false);
	struct block_key key = { .address = address };
	struct counted_block *block;

	if (!ids)
		return false;
	key.space = ids->space;
	block = bpf_map_lookup_elem(&blocks, &key);
	if (!block)
		return false;
	*out = *block;
	/* the program that deletes it has it */
	return !bpf_map_delete_elem(&blocks, &key);
}

static __always_inline void combined_freed(struct counted_block *block, bool unseen)
{
	struct vmaudit_heap_site *site = bpf_map_lookup_elem(&sites, &block->site);

	if (!site)
		return;
	__sync_fetch_and_add(&site->frees, 1);
	__sync_fetch_and_add(&site->freed_bytes, block->size);
	if (unseen)
		__sync_fetch_and_add(&site->unseen_frees, 1);
}

/* A resize has failed. */
static __always_inline void combined_put_back(struct task_struct *task, __u64 address, struct counted_block *block)
{
	struct space_ids *ids = ids_of(task, false);
	struct block_key key = { .address = address };

	if (ids) {
		key.space = ids->space;
		if (!bpf_map_update_elem(&blocks, &key, block, BPF_ANY))
			return;
	}
	heap_count(VMAUDIT_HEAP_LOST_FREES); /* its free will not be known */
}

static __always_inline struct vmaudit_heap_site *site_of(struct task_struct *task, struct counted_block *block,
							  __u64 space)
{
	struct vmaudit_heap_site *site = bpf_map_lookup_elem(&sites, &block->site);
	struct vmaudit_heap_site fresh = {};

	if (site)
		return site;
	fresh.space = space;
	fresh.mm = (__u64)mm_of(task);
	fresh.pid = pid_of(task);
	bpf_map_update_elem(&sites, &block->site, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&sites, &block->site);
}

enum combined_outcome {
	COMBINED_NOT, /* to be sent */
	COMBINED_COUNTED,
	COMBINED_NAMELESS, /* counted; user space does not know yet what stack that is */
};

/* The call's `block` gets its site, its event the number of the address space. */
static __noinline int combined_allocated(struct pt_regs *regs, __u64 address, struct heap_call *call)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct block_key key = { .address = address };
	struct counted_block *block = &call->block;
	struct vmaudit_heap_site *site;
	struct space_ids *ids;

	if (combined_take(task, address, &call->stale))
		combined_freed(&call->stale, true);
	/* vfork's child runs in its parent's address space: its counts are not its own */
	if (BPF_CORE_READ(task, vfork_done))
		return COMBINED_NOT;
	ids = ids_of(task, true);
	if (!ids)
		return COMBINED_NOT;
	key.space = ids->space;
	call->event.args[3] = key.space;
	__builtin_memset(block, 0, sizeof(*block));
	block->size = call->size;
	block->site.function = call->function;
	block->site.code = ids->code;
	if (!walk_stack(regs, &block->site))
		return COMBINED_NOT;
	site = site_of(task, block, key.space);
	if (!site)
		return COMBINED_NOT;
	if (bpf_map_update_elem(&blocks, &key, block, BPF_ANY))
		return COMBINED_NOT;
	__sync_fetch_and_add(&site->allocations, 1);
	__sync_fetch_and_add(&site->bytes, block->size);
	heap_count(VMAUDIT_HEAP_SEEN);
	heap_count(VMAUDIT_HEAP_COUNTED);
	return site->named ? COMBINED_COUNTED : COMBINED_NAMELESS;
}

static __always_inline void combined_named(struct vmaudit_heap_site_key *key)
{
	struct vmaudit_heap_site *site = bpf_map_lookup_elem(&sites, key);

	if (site)
		site->named = 1;
}

/* ---- creation and end of address spaces ------------------------------------------------------------- */

static __always_inline bool is_file(struct task_struct *task, __u64 at)
{
	struct found_vma found = {};

	if (bpf_find_vma(task, at, remember_vma, &found, 0) == -NOTHING_MAPPED)
		return false;
	/* what is not found may be one */
	return !find_vma(task, at, INSIST, &found) || found.file;
}

static __always_inline struct space_ids *may_unmap(struct task_struct *task, long id)
{
	if (id != __NR_munmap && id != __NR_mremap && id != __NR_mmap)
		return NULL;
	if (!bpf_task_storage_get(&threads, task, 0, 0))
		return NULL;
	return ids_of(task, false);
}

/* Code that is about to be unmapped, or mapped over. */
static __always_inline int on_unmapping(struct pt_regs *regs, long id)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct space_ids *ids = may_unmap(task, id);
	struct vmaudit_record args;
	struct heap_call *call;

	if (!ids)
		return 0;
	ARCH_ARGS(&args, regs);
	if (id == __NR_mmap && !(args.args[3] & MAP_IS_FIXED))
		return 0;
	if (!is_file(task, args.args[0]) && !is_file(task, args.args[0] + args.args[1] - 1))
		return 0;
	ids->code = new_number();
	call = bpf_task_storage_get(&calls, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (call)
		call->unmaps = 1;
	return 0;
}

/* It is gone: what was cached meanwhile is invalid, too. */
static __always_inline int on_unmapped(struct pt_regs *regs)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct space_ids *ids = may_unmap(task, ARCH_SYSCALL_NR(regs));
	struct heap_call *call;

	if (!ids)
		return 0;
	call = bpf_task_storage_get(&calls, task, 0, 0);
	if (call && call->unmaps) {
		call->unmaps = 0;
		ids->code = new_number();
	}
	return 0;
}

static __always_inline int on_new_space(struct mm_struct *mm)
{
	__u64 key = (__u64)mm;

	bpf_map_delete_elem(&spaces, &key);
	return 0;
}

/* Spares, as in tasks.h: where more than one of them runs, the second does no harm. */
#define COMBINED_PROGRAMS(suffix)                                                                     \
	SEC("tp_btf/sched_process_exec")                                                              \
	int BPF_PROG(combined_exec##suffix, struct task_struct *task)                                 \
	{                                                                                             \
		return on_new_space(mm_of(task));                                                     \
	}                                                                                             \
	SEC("tp_btf/sched_process_fork")                                                              \
	int BPF_PROG(combined_fork##suffix, struct task_struct *parent, struct task_struct *child)    \
	{                                                                                             \
		return mm_of(child) == mm_of(parent) ? 0 : on_new_space(mm_of(child));                \
	}                                                                                             \
	/* where the functions for system calls have no probes of their own (below) */                \
	SEC("tp_btf/sys_enter")                                                                       \
	int BPF_PROG(combined_enter##suffix, struct pt_regs *regs, long id)                           \
	{                                                                                             \
		return on_unmapping(regs, id);                                                        \
	}                                                                                             \
	SEC("tp_btf/sys_exit")                                                                        \
	int BPF_PROG(combined_leave##suffix, struct pt_regs *regs, long result)                       \
	{                                                                                             \
		return on_unmapped(regs);                                                             \
	}

COMBINED_PROGRAMS()
COMBINED_PROGRAMS(_spare)
COMBINED_PROGRAMS(_spare2)

/* Where the tracepoints' programs are preempted, as syscall_returned: only of the calls that unmap. */
SEC("kprobe.multi")
int combined_unmapping(struct pt_regs *ctx)
{
	struct pt_regs *user = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());

	return on_unmapping(user, ARCH_SYSCALL_NR(user));
}

SEC("kretprobe.multi")
int combined_unmapped(struct pt_regs *ctx)
{
	return on_unmapped((struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf()));
}

#endif
