/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * The mark of syncd's own writes, shared by the writing programs and the hooks.
 */
#ifndef MAPSYNC_OWN_WRITER_H
#define MAPSYNC_OWN_WRITER_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* own_mark is one CPU's mark. 0 <= runs of writing programs that may hold it. */
struct own_mark {
	__u64 task; /* whose write is under way on this CPU, 0: none */
	__u64 runs; /* writing programs that hold the mark or try to */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct own_mark);
} own_writer SEC(".maps");

#endif
