/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * The mark of syncd's own writes, shared by the writing programs and the hooks.
 */
#ifndef MAPSYNC_OWN_WRITE_MARKS_H
#define MAPSYNC_OWN_WRITE_MARKS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* own_mark is the mark of one CPU. */
struct own_mark {
	__u64 task; /* task whose write is in progress on this CPU, 0: none */
	__u64 runs; /* writing programs that hold the mark or try to */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct own_mark);
} own_write_marks SEC(".maps");

#endif
