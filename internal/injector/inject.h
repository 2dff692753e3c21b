/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/* The changes that an injector makes, and the code that makes one and reports it. */
#ifndef MAPSYNC_INJECT_H
#define MAPSYNC_INJECT_H

#include "../../bpf/event.h"

volatile const __u32 target_id = 0;
volatile const __u32 key_size = 4;
volatile const __u32 value_size = 4;

/* Write the map only, or report the event only, to measure the cost of each half. */
volatile const bool skip_write = false;
volatile const bool skip_event = false;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, 4);
} target SEC(".maps"); /* replaced with the map that the injector writes */

/* One change: head, key and value, each padded to 8 bytes. The loader sets the size. */
struct change {
	__u16 op;
	__u16 context;
	__s32 result; /* of the write, 0 or a negative error */
	__u8 data[];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, 24);
} changes SEC(".maps");

struct inject_args {
	__u32 first;
	__u32 count;
	__u32 failed;
};

/* run is the state of one run of a program. */
struct run {
	struct inject_args args;
	void *ctx; /* of the program, for the output to a perf buffer */
};

static long inject_one(__u32 i, struct run *run)
{
	__u32 at = run->args.first + i, level;
	__u32 id = target_id;
	struct change *c = bpf_map_lookup_elem(&changes, &at);
	struct slot *s, *base;
	struct watch *w;
	void *value;
	long err = 0;

	if (!c)
		return 1;
	value = c->data + ALIGN8(key_size);
	if (!skip_write) {
		if (c->op == OP_DELETE)
			err = bpf_map_delete_elem(&target, c->data);
		else
			err = bpf_map_update_elem(&target, c->data, value, BPF_ANY);
	}
	c->result = err;
	if (err)
		run->args.failed++;
	w = skip_event ? NULL : watch_of(id);
	if (!w)
		return 0;
	s = enter(KIND_INJECTED, &base, &level);
	if (!s)
		return 0;
	s->seen++;
	if (err)
		s->failed++;
	else
		emit(run->ctx, s, KIND_INJECTED * LEVELS + level, id, w, c->op, c->context, c->data,
		     c->op == OP_UPDATE ? value : NULL);
	leave(base);
	return 0;
}

#endif
