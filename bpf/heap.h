/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the probes on allocators and user space agree on, in addition to vmaudit.h: the table of functions and
 * the records. Their ops are numbered on from vmaudit.h's; all start as struct vmaudit_record does.
 */
#ifndef VMAUDIT_HEAP_H
#define VMAUDIT_HEAP_H

enum vmaudit_heap_op {
	/* args: address, size, context */
	VMAUDIT_OP_ALLOCATED = 72,
	/* args: address, where the function returns to */
	VMAUDIT_OP_FREED = 73,
	/* args: address */
	VMAUDIT_OP_RESIZE_BEGUN = 74,
	/* args: old address, new one or 0, size, context; VMAUDIT_HEAP_FAILED */
	VMAUDIT_OP_RESIZE_ENDED = 75,
	/* args: -, size */
	VMAUDIT_OP_REFUSED = 76,
	/* args: context, parent, -; payload: its name, where it has one */
	VMAUDIT_OP_CONTEXT_CREATED = 77,
	/* args: context, covers */
	VMAUDIT_OP_CONTEXT_RESET = 78,
	/* args: context, covers */
	VMAUDIT_OP_CONTEXT_DELETED = 79,
	/* args: context, new parent */
	VMAUDIT_OP_CONTEXT_MOVED = 80,
	/* --combined: the stack of a site. args: struct vmaudit_heap_site_key's code, first, second; the
	 * number of the address space */
	VMAUDIT_OP_SITE = 81,
};

/* in addition to enum vmaudit_flag */
enum vmaudit_heap_flag {
	VMAUDIT_HEAP_FAILED = 256,
};

enum vmaudit_heap_action {
	VMAUDIT_ACT_NONE = 0,
	VMAUDIT_ACT_ALLOCATE = 1,
	VMAUDIT_ACT_FREE = 2,
	VMAUDIT_ACT_RESIZE = 3,
	VMAUDIT_ACT_CREATE = 4,
	VMAUDIT_ACT_RESET = 5,
	VMAUDIT_ACT_DELETE = 6,
	VMAUDIT_ACT_MOVE = 7,
};

/* Where a value is; 1 to 6: in this argument. */
enum vmaudit_heap_where {
	VMAUDIT_WHERE_NONE = 0,
	VMAUDIT_WHERE_RETURNED = 16,
	/* plus 1 to 6: this argument points to it, once the function has returned 0 */
	VMAUDIT_WHERE_POINTEE = 32,
	/* in a variable of the same file */
	VMAUDIT_WHERE_GLOBAL = 64,
};

/* One probed function: its index in the table is the probe's cookie. Each place is an enum
 * vmaudit_heap_where. */
struct vmaudit_heap_function {
	__u8 action; /* enum vmaudit_heap_action */
	__u8 size;
	__u8 factor;  /* the size is this argument times `size` */
	__u8 pointer; /* what is freed or resized */
	__u8 result;  /* the new block, the new context */
	__u8 context;
	__u8 parent;
	__u8 name;    /* a string */
	__u8 covers;  /* reset, delete: passed on */
	__u8 bracket; /* free: what it calls in turn does not count either */
	__u8 unused[6];
	__s64 global; /* how far from the function the variable is */
};

/* A record without registers and stack: the first 72 bytes of struct vmaudit_record. */
struct vmaudit_heap_brief {
	__u64 time_ns;
	__u64 mm;
	__u32 pid;
	__u32 tid;
	__u16 op;
	__u16 flags;
	__u32 payload;
	__s64 function;
	__u64 args[4];
};

/* Every heap event has one of the next four outcomes. */
enum vmaudit_heap_counter {
	VMAUDIT_HEAP_SEEN = 0,             /* events, outermost calls only */
	VMAUDIT_HEAP_WITHOUT_STACK = 1,    /* of these: sent without stack, the ring was full */
	VMAUDIT_HEAP_LOST_ALLOCATIONS = 2, /* not sent at all */
	VMAUDIT_HEAP_LOST_FREES = 3,
	VMAUDIT_HEAP_LOST_OTHERS = 4,
	VMAUDIT_HEAP_ABANDONED = 5,        /* calls that never returned: longjmp, exceptions */
	VMAUDIT_HEAP_UNTRACKED = 6,        /* no memory for a thread's state */
	VMAUDIT_HEAP_SKIPPED = 7,          /* allocations that the sample left out */
	VMAUDIT_HEAP_COUNTED = 8,          /* allocations counted in the kernel, not sent */
	VMAUDIT_HEAP_COUNTERS = 9,
};

/* Of one CPU; whole cache lines. */
struct vmaudit_heap_counts {
	__u64 of[16];
};

enum vmaudit_heap_limit {
	VMAUDIT_HEAP_FUNCTIONS = 8192,
};

/* ---- --combined ------------------------------------------------------------------------ */

enum vmaudit_heap_rule_kind {
	VMAUDIT_RULE_SP = 1,   /* the canonical frame address is `cfa` from the stack pointer */
	VMAUDIT_RULE_BP = 2,   /* from the frame pointer */
	VMAUDIT_RULE_ROOT = 3, /* no caller */
};

struct vmaudit_heap_rule_key {
	__u64 code;    /* the state of the address space's code */
	__u64 address; /* shifted left by one; plus one: of the innermost frame, no return address */
};

struct vmaudit_heap_rule {
	__s32 cfa;
	__s16 bp; /* where the caller's frame pointer is, in words from the CFA; 0: in the register */
	__u8 kind;
	__u8 unused;
};

/* A stack that calls a function: the number that its addresses give, 128 bits. */
struct vmaudit_heap_site_key {
	__u64 code;
	__u64 first;
	__u64 second;
	__u32 function;
	__u32 unused;
};

struct vmaudit_heap_site {
	__u64 allocations;
	__u64 bytes;
	__u64 frees;
	__u64 freed_bytes;
	__u64 unseen_frees; /* of `frees`: proven by the address being handed out again */
	__u64 space;
	__u64 mm;
	__u32 pid;
	__u32 named; /* its stack was sent */
};

struct counted_block {
	__u64 size;
	struct vmaudit_heap_site_key site;
};

#endif
