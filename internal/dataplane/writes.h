/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The list of writes of the data planes for tests, and one run of it. */
#include <linux/bpf.h>
#include <stdbool.h>

#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Maximum number of writes in one run. */
#define RUN_WRITES 16

enum op { OP_UPDATE, OP_DELETE, OP_IN_PLACE };

const volatile __u32 key_size = 4;
const volatile __u32 value_size = 4;

/* Number of writes in one run, at most RUN_WRITES. */
const volatile __u32 run_writes = 1;

/* Restart at the beginning of the list after its end. */
const volatile bool endless = false;

/* Offset in the value at which OP_IN_PLACE writes 8 bytes, a multiple of 8. */
const volatile __u32 place_at = 0;

/* Store the number of the write, counted from 1, in bytes 8 to 15 of the value. */
const volatile bool number_values = false;

/* The loader replaces it by the map to write. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, 4);
} target SEC(".maps");

/* One write: this head, then key and value, each padded to 8 bytes. */
struct write {
	__u32 op;
	__s32 result;
	__u64 flags;
	__u8 data[];
};

/* The loader sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, 32);
} writes SEC(".maps");

/* Only one CPU at a time runs an instance, so the counters are not atomic. */
struct progress {
	__u32 next;
	__u32 end;
	__u64 runs; /* ended */
	__u64 done;
	__u64 failed;
	__u64 cpu; /* of the last run */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct progress);
} progress SEC(".maps");

static __always_inline int make(struct write *w, void *value)
{
	void *place;

	if (w->op == OP_DELETE)
		return bpf_map_delete_elem(&target, w->data);
	if (w->op == OP_UPDATE)
		return bpf_map_update_elem(&target, w->data, value, w->flags);
	if (place_at + 8 > value_size)
		return -1;
	place = bpf_map_lookup_elem(&target, w->data);
	if (!place)
		return -2;
	*(__u64 *)(place + place_at) = *(__u64 *)(value + place_at);
	return 0;
}

/* make_run makes the next writes of the list. It returns 0. */
static __always_inline int make_run(void)
{
	__u32 zero = 0, at;
	struct progress *p = bpf_map_lookup_elem(&progress, &zero);

	if (!p)
		return 0;
	p->cpu = bpf_get_smp_processor_id();
	for (int i = 0; i < RUN_WRITES && i < run_writes; i++) {
		struct write *w;
		void *value;

		if (p->next >= p->end) {
			if (!endless)
				break;
			p->next = 0;
		}
		at = p->next;
		w = bpf_map_lookup_elem(&writes, &at);
		if (!w)
			break;
		value = w->data + ((key_size + 7) & ~7U);
		if (number_values && value_size >= 16)
			((__u64 *)value)[1] = p->done + 1;
		w->result = make(w, value);
		p->next++;
		p->done++;
		if (w->result)
			p->failed++;
	}
	/* Last: who waits for a run then reads its results. */
	__sync_fetch_and_add(&p->runs, 1);
	return 0;
}
