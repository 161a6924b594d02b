/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What probe.bpf.c and user space agree on, in addition to vmaudit.h.
 */
#ifndef VMAUDIT_PROBE_H
#define VMAUDIT_PROBE_H

/* Numbered on from vmaudit.h's and heap.h's. */
enum vmaudit_probe_op {
	/* a probed function was entered; ret: its index */
	VMAUDIT_OP_PROBED = 96,
};

/* traced_thread.low of a process that is not the command yet. */
#define VMAUDIT_BEFORE_EXEC (~0ULL)

#endif
