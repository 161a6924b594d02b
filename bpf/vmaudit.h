/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The wire record between the kernel side and user space: its only definition. The Rust side
 * uses the types that libbpf-cargo generates from this object's BTF, and asserts their sizes.
 */
#ifndef VMAUDIT_H
#define VMAUDIT_H

enum vmaudit_op {
	VMAUDIT_OP_NONE = 0,
	/* one per traced system call; user space fills op_of_syscall with these */
	VMAUDIT_OP_MMAP = 1,
	VMAUDIT_OP_MUNMAP = 2,
	VMAUDIT_OP_MREMAP = 3,
	VMAUDIT_OP_BRK = 4,
	VMAUDIT_OP_MPROTECT = 5,
	VMAUDIT_OP_PKEY_MPROTECT = 6,
	VMAUDIT_OP_MADVISE = 7,
	VMAUDIT_OP_PROCESS_MADVISE = 8,
	VMAUDIT_OP_SHMAT = 9,
	VMAUDIT_OP_SHMDT = 10,
	VMAUDIT_OP_REMAP_FILE_PAGES = 11,
	VMAUDIT_OP_IO_SETUP = 12,
	VMAUDIT_OP_MAP_SHADOW_STACK = 13,
	VMAUDIT_OP_PRCTL = 14,
	VMAUDIT_OP_SECCOMP = 15,
	VMAUDIT_OP_IO_DESTROY = 16,
	/* steps in the life of a task */
	VMAUDIT_OP_FORK = 32,   /* args: child pid, child tid, child mm, child sp, is a thread, brk */
	VMAUDIT_OP_EXEC = 33,   /* args: start_brk, brk, start_stack, 32-bit */
	VMAUDIT_OP_EXIT = 34,   /* args: wait status, last task of the process */
	VMAUDIT_OP_RENAME = 35, /* comm is the new name */
	/* A path; text: its components, leaf first, each ending in NUL. Of the number aux[0], which later records
	 * name it by; without one it belongs to the next record of the same thread, as those below do. */
	VMAUDIT_OP_FILE = 48,   /* dev, ino, nlink */
	VMAUDIT_OP_NAME = 49,   /* text: a NUL-terminated string (PR_SET_VMA_ANON_NAME) */
	VMAUDIT_OP_VMA = 50,    /* args: start, end, vm_flags, pgoff, enum vmaudit_special; dev, ino */
	/* Frames of a managed language on the stack of the next record of the same thread, innermost first.
	 * args: how many, enum vmaudit_managed_end, the stack pointer (that of the record that they belong to: if that
	 * one was lost, they are no other's); they follow as vmaudit_managed_frame */
	VMAUDIT_OP_MANAGED = 51,
	/* What such frames run, of the number aux[0] (vmaudit_managed_frame). args: its first line; of the file's
	 * name, bytes and, << 32, bytes a character; of its own name the same; bytes of its table of lines, or ~0
	 * where it is not there; its first instruction that counts as running. They follow at VMAUDIT_CODE_FILE,
	 * VMAUDIT_CODE_NAME, VMAUDIT_CODE_LINES. */
	VMAUDIT_OP_CODE = 52,
	/* The stack that the goroutine has left on whose behalf the thread makes its next call. args: the stack pointer
	 * of that call (as VMAUDIT_OP_MANAGED), whether it was the goroutine's still when it had been copied; ip, sp, bp:
	 * where it was left; the bytes from sp on follow */
	VMAUDIT_OP_LEFT_STACK = 53,
	/* records of the ring `touches` (--touch), apart from all others. args: address, the number of
	 * faults that it represents, write, taken inside the kernel, the page was present */
	VMAUDIT_OP_TOUCH = 64,
};

enum vmaudit_special {
	VMAUDIT_SPECIAL_NONE = 0,
	VMAUDIT_SPECIAL_STACK = 1,
	VMAUDIT_SPECIAL_VDSO = 2,
	VMAUDIT_SPECIAL_HEAP = 3,
};

enum vmaudit_flag {
	VMAUDIT_STACK_FULL = 1,       /* the bytes reach the end of the thread's stack */
	VMAUDIT_STACK_UNREADABLE = 2, /* the stack memory could not be read */
	VMAUDIT_HAS_FILE = 4,         /* dev, ino, nlink are set */
	VMAUDIT_HAS_AUX = 8,          /* aux is set */
	VMAUDIT_LISTED = 16,          /* fork, exec: VMAUDIT_OP_VMA records list every VMA */
	VMAUDIT_WITHOUT_STACK = 32,   /* the ring had no space for it */
	VMAUDIT_STACK_HOLES = 64,     /* pages of the stack were not there: zeros, or swapped out */
	VMAUDIT_FEW_REGISTERS = 128,  /* only ip and sp are known (never from the BPF programs) */
	VMAUDIT_FILE_NUMBERED = 256,  /* aux[0] is the number of the file's path */
	VMAUDIT_STACK_KNOWN = 512,    /* `stack` is its number */
};

#define VMAUDIT_COMM 16
#define VMAUDIT_NAME_MAX 256 /* NAME_MAX + 1 */
#define VMAUDIT_TEXT 4096

/* 8-byte aligned, no padding; followed by text or stack bytes. */
struct vmaudit_record {
	__u64 time_ns;
	__u64 mm;       /* address of the mm_struct */
	__u32 pid;      /* thread group */
	__u32 tid;
	__u16 op;       /* enum vmaudit_op */
	__u16 flags;    /* enum vmaudit_flag */
	__u32 payload;  /* bytes of text or stack that follow */
	__s64 ret;
	__u64 args[6];
	__u64 ip, sp, bp, bx, r12, r13, r14, r15;
	__u64 total_vm; /* pages */
	__u64 aux[2];   /* brk: mm->brk; shmat, io_setup: the VMA's start and end; VMAUDIT_FILE_NUMBERED */
	__u64 ino;
	__u32 dev;      /* the kernel's own encoding: major << 20 | minor */
	__u32 nlink;
	char comm[VMAUDIT_COMM]; /* fork (of the child), exec, rename */
	__u64 stack;    /* VMAUDIT_STACK_KNOWN */
};

/* How a list of managed frames ends. */
enum vmaudit_managed_end {
	VMAUDIT_MANAGED_WHOLE = 0,
	VMAUDIT_MANAGED_CUT = 1,    /* there are more */
	VMAUDIT_MANAGED_BROKEN = 2, /* what came next was not what it should be: nothing of it is valid */
};

#define VMAUDIT_MANAGED_FRAMES 128

/* A frame that is not on the thread's own stack. */
struct vmaudit_managed_frame {
	__u64 under; /* Address on the thread's own stack: in the frame of the function that runs this one and
		      * those before it, up to the last that has one. 0: the same as the next one's. */
	__u64 code;  /* the number of a VMAUDIT_OP_CODE */
	__u64 at;    /* bytes into its code */
};

#define VMAUDIT_CODE_NAME_MAX 1024

/* Where the parts of a VMAUDIT_OP_CODE begin. */
enum vmaudit_code {
	VMAUDIT_CODE_FILE = 0,
	VMAUDIT_CODE_NAME = VMAUDIT_CODE_NAME_MAX,
	VMAUDIT_CODE_LINES = 2 * VMAUDIT_CODE_NAME_MAX,
};

/* An offset of what an interpreter has not. */
enum vmaudit_not_there {
	VMAUDIT_NOT_THERE = 0xffff,
};

/* Where an interpreter keeps what is read of it: offsets in bytes. */
struct vmaudit_layout {
	__u16 interpreters;      /* in its runtime: the first interpreter */
	__u16 interpreter_next;
	__u16 interpreter_threads;
	__u16 thread_next;
	__u16 thread_previous;
	__u16 thread_id;         /* the thread's control block */
	__u16 thread_frame;      /* the innermost frame, or, with run_frame, the innermost run */
	__u16 run_frame;         /* of a run, a variable of the evaluating function: its innermost frame; or not there */
	__u16 run_previous;
	__u16 frame_code;
	__u16 frame_previous;
	__u16 frame_instruction;
	__u16 frame_owner;
	__u16 frame_entry;       /* a byte: the outermost frame of its run; or not there */
	__u16 code_first_line;
	__u16 code_names;        /* file's name, name, qualified name, table of lines */
	__u16 code_first_traceable;
	__u16 code_bytes;
	__u16 object_type;
	__u16 object_size;
	__u16 bytes_data;
	__u16 text_length;
	__u16 text_state;
	__u16 text_ascii;        /* where the characters are, of an ASCII string and of others */
	__u16 text_other;
	__u16 foreign_owner;     /* from this value of frame_owner on it is a frame of the evaluating function */
};

/* Where Go's runtime keeps the goroutines: offsets in bytes. What runs (`g`) is a goroutine, whose first two words are
 * the bounds of its stack, or the thread itself. */
struct vmaudit_left_stacks {
	__s64 running;       /* from the thread's control block; see `running_in_word` */
	__u16 thread;        /* in what runs: the record of its thread (`m`), which begins with the thread itself (`g0`);
			      * 0: this is not Go */
	__u16 current;       /* in that record: the goroutine */
	__u16 stack_pointer; /* where a goroutine left its stack */
	__u16 instruction;
	__u16 frame_pointer;
	__u16 running_in_word; /* how far from the control block is what the word says that stands where the interpreter's
				* runtime would be */
	__u16 pad[2];
};

/* A file with an interpreter in it, or a Go program. */
struct vmaudit_interpreter_file {
	__u64 ino;
	__u32 dev;
	__u32 pad;
	__u64 code_offset; /* where in the file its code begins, rounded down to a page */
	__u64 from_start; /* to its runtime: from where the file's first byte would be, */
	__u64 from_code;  /* and from the start of its code */
	__u64 code_type;  /* from the runtime to what its objects have for their type: code, text, bytes */
	__u64 text_type;
	__u64 bytes_type;
	struct vmaudit_left_stacks left_stacks;
	struct vmaudit_layout layout;
	__u32 pad2;
};

#define VMAUDIT_INTERPRETER_FILES 256

struct vmaudit_interpreter_files {
	__u64 count;  /* written after the entry */
	__u64 mapped; /* a process has one of them */
	struct vmaudit_interpreter_file file[VMAUDIT_INTERPRETER_FILES];
};

/* An interpreter in an address space. */
struct vmaudit_interpreter {
	__u64 runtime; /* 0: none */
	__u64 file;    /* its index */
};

#define VMAUDIT_KNOWN_STACKS 4096
#define VMAUDIT_KNOWN_WAYS 4      /* places that a stack may be at: at its hash and after */
#define VMAUDIT_KNOWN_WORDS 128
#define VMAUDIT_KNOWN_SPAN 16384  /* the greatest distance, and bytes that are compared at once */
#define VMAUDIT_KNOWN_RELATIVE 1  /* in a distance: what is expected is one, too, from the stack pointer */
#define VMAUDIT_KNOWN_HASH 0x9e3779b97f4a7c15ULL

/* A stack that user space has unwound and gave a number. */
struct vmaudit_known_stack {
	__u64 version; /* odd while the rest is being changed */
	__u64 number;
	__u64 mm;      /* as in vmaudit_record */
	__u64 pid;     /* the same: the next process may have the same address for its mm_struct */
	__u64 ip;
	__u64 depth;   /* bytes from the stack pointer to the stack's end */
	__u64 by_frame_pointer; /* 1: a frame is found by the call's rbp */
	__u64 frame_pointer;    /* which is so far from the stack pointer */
	__u32 words;
	__u32 span;    /* bytes from the stack pointer that are to be compared */
	__u64 expected[VMAUDIT_KNOWN_WORDS];  /* return addresses, and saved registers that frames are found by */
	__u16 distances[VMAUDIT_KNOWN_WORDS]; /* where, in bytes from the stack pointer; multiples of a word */
};

/* The same for user space. */
enum vmaudit_known {
	VMAUDIT_KNOWN_STACKS_ = VMAUDIT_KNOWN_STACKS,
	VMAUDIT_KNOWN_WAYS_ = VMAUDIT_KNOWN_WAYS,
	VMAUDIT_KNOWN_SPAN_ = VMAUDIT_KNOWN_SPAN,
	VMAUDIT_KNOWN_RELATIVE_ = VMAUDIT_KNOWN_RELATIVE,
};

enum vmaudit_counter {
	VMAUDIT_SEEN = 0,
	VMAUDIT_EVENTS_WITHOUT_STACK = 1, /* the ring had no space for it */
	VMAUDIT_LOST_EVENTS = 2,    /* not recorded at all */
	VMAUDIT_LOST_TASKS = 3,     /* a new task could not be followed */
	VMAUDIT_MARKED = 4,         /* a thread was found that was not marked yet */
	VMAUDIT_UNMARKABLE = 5,     /* and could not be */
	VMAUDIT_HIDDEN = 6,         /* a traced task became one that the viewer may not inspect */
	VMAUDIT_KNOWN_SENT = 7,      /* recorded with the number of a known stack */
	VMAUDIT_LOST_MANAGED = 8,    /* managed frames that were not sent: no space, or another task was at it */
	VMAUDIT_COUNTERS = 9,
};

/* Of one CPU; two cache lines. */
struct vmaudit_counts {
	__u64 of[16];
};

/* In which hierarchy of cgroups the containers are searched for: cgroup v2, or a controller of v1. */
enum vmaudit_hierarchy {
	VMAUDIT_CGROUP_NONE = 0,
	VMAUDIT_CGROUP_V2 = 1,
	VMAUDIT_CGROUP_PIDS = 2,
	VMAUDIT_CGROUP_MEMORY = 3,
	VMAUDIT_CGROUP_CPU = 4,
	VMAUDIT_CGROUP_CPUSET = 5,
	VMAUDIT_CGROUP_CPUACCT = 6,
	VMAUDIT_CGROUP_DEVICES = 7,
	VMAUDIT_CGROUP_FREEZER = 8,
	VMAUDIT_CGROUP_BLKIO = 9,
};

#define VMAUDIT_CGROUPS 64

/* What the pass over the tasks writes for each thread of a marked process; no padding. */
struct vmaudit_found {
	__u64 mm;  /* as in vmaudit_record; 0 for a thread that has exited */
	__u64 brk; /* mm->brk */
	__u32 pid;
	__u32 tid;
	char comm[VMAUDIT_COMM];
};

#endif
