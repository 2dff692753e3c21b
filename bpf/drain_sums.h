/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * The sums of a drained map, their state, and the code that adds entries to them.
 */
#ifndef MAPSYNC_DRAIN_SUMS_H
#define MAPSYNC_DRAIN_SUMS_H

#include "syscall.h"

/* The loader sets the sizes of an entry in bytes, and divides the value into fields that are added
 * and ranges of which the last content counts. */
#define MAX_RANGES 64
#define ORIGIN_BYTES 8

struct range {
	__u32 offset;
	__u32 size; /* 0: after the last range */
};

volatile const __u32 key_size = 8;
volatile const __u32 value_size = 8;
/* Programs with a higher number than the state do nothing. Those with a lower number are
 * superseded. */
volatile const __u64 generation = 1;
/* Whether the kernel runs the program that was attached last first, at the beginning and at the end
 * of a call. */
volatile const bool newest_begins_first = false;
volatile const bool newest_ends_first = false;
volatile const struct range added[MAX_RANGES] = {};
volatile const struct range copied[MAX_RANGES] = {};

/* drain_state is shared with syncd through a memory mapping. Mirrored by syncd/drained/state.go. */
struct drain_state {
	__u64 origin;	  /* the end of each key of the sums that this host adds to */
	__u64 generation; /* of the programs that add */
	__u64 entered;	  /* calls that have begun */
	__u64 left;	  /* calls that have ended, and whose entries are in the sums */
	__u64 entries;	  /* added to the sums */
	__u64 unread;	  /* entries and calls whose entries could not be read */
	__u64 full;	  /* entries for which the sums had no room */
	__u64 missed;	  /* calls whose end was not seen */
	__u64 layout;	  /* of syncd: identifies the layout of the sums */
	__u64 version;	  /* of syncd: identifies the programs that add */
	__u64 unseen;	  /* calls whose beginning was not seen, and whose entries were added */
	__u32 map_id;	  /* the drained map, 0: none */
	__u32 exclusive;  /* no programs of another generation are attached */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct drain_state);
} drain_state SEC(".maps");

/* The sums: the key of the drained map and the origin, and a value of the drained map. The loader
 * sets the sizes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(key_size, 8 + ORIGIN_BYTES);
	__uint(value_size, 8);
} drain_sums SEC(".maps");

/* A call that has begun and not ended, by its thread. The program that removes it adds the entries
 * of the call. */
struct drain_call {
	__u64 began; /* bpf_ktime_get_ns */
	__u64 generation;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct drain_call);
} drain_calls SEC(".maps");

/* work is a call whose entries are being added on this CPU, and the present entry. */
struct work {
	__u64 keys;   /* user address */
	__u64 values; /* user address */
	__u32 count;
	__u32 next; /* the first entry that is not added */
	__u8 key[MAX_KEY + ORIGIN_BYTES];
	__u8 value[MAX_VALUE];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct work);
} drain_work SEC(".maps");

/* The kernel may preempt a program for a run of another one. */
enum { WORK_BATCH, WORK_ELEM };

/* The program that adds the entries of a call. The maximum number of tail calls limits the entries
 * of a call on kernels before 5.17, which have no bpf_loop. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} drain_next SEC(".maps");

#define ENTRIES_PER_TAIL_CALL 256

static __always_inline struct drain_state *state(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&drain_state, &zero);
}

static __always_inline struct work *work(__u32 which)
{
	return bpf_map_lookup_elem(&drain_work, &which);
}

/* add_to adds the present value to a sum. newest is false if the other fields of the sum are those
 * of a newer entry. */
static __always_inline void add_to(__u8 *sum, struct work *w, bool newest)
{
	for (int i = 0; i < MAX_RANGES && added[i].size; i++) {
		__u32 at = added[i].offset;

		if (at > MAX_VALUE - 8)
			return;
		if (added[i].size == 8)
			__sync_fetch_and_add((__u64 *)(sum + at), *(__u64 *)(w->value + at));
		else
			__sync_fetch_and_add((__u32 *)(sum + at), *(__u32 *)(w->value + at));
	}
	for (int i = 0; newest && i < MAX_RANGES && copied[i].size; i++) {
		__u32 at = copied[i].offset, size = copied[i].size;

		if (at >= MAX_VALUE || size > MAX_VALUE - at)
			return;
		bpf_probe_read_kernel(sum + at, size, w->value + at);
	}
}

/* add adds the present entry to the sums, as add_to. It returns false if they have no room. */
static __always_inline bool add(struct drain_state *s, struct work *w, bool newest)
{
	__u8 *sum;

	if (key_size > MAX_KEY ||
	    bpf_probe_read_kernel(w->key + key_size, ORIGIN_BYTES, &s->origin))
		return false;
	sum = bpf_map_lookup_elem(&drain_sums, w->key);
	if (!sum) {
		if (!bpf_map_update_elem(&drain_sums, w->key, w->value, BPF_NOEXIST))
			return true;
		/* Another CPU may have added the key. */
		sum = bpf_map_lookup_elem(&drain_sums, w->key);
		if (!sum)
			return false;
	}
	add_to(sum, w, newest);
	return true;
}

/* add_drained is add for a drained entry, with its counter. */
static __always_inline void add_drained(struct drain_state *s, struct work *w)
{
	__sync_fetch_and_add(add(s, w, true) ? &s->entries : &s->full, 1);
}

/* add_user adds entry i of the call. */
static __always_inline void add_user(struct drain_state *s, struct work *w, __u64 i)
{
	if (key_size > MAX_KEY || value_size > MAX_VALUE ||
	    bpf_probe_read_user(w->key, key_size, (void *)w->keys + i * key_size) ||
	    bpf_probe_read_user(w->value, value_size, (void *)w->values + i * value_size)) {
		__sync_fetch_and_add(&s->unread, 1);
		return;
	}
	add_drained(s, w);
}

/* leave_call ends a call whose entries have been added. */
static __always_inline void leave_call(struct drain_state *s, __u32 unread)
{
	if (unread)
		__sync_fetch_and_add(&s->unread, unread);
	__sync_fetch_and_add(&s->left, 1);
}

static long add_in_loop(__u32 i, void *unused)
{
	struct drain_state *s = state();
	struct work *w = work(WORK_BATCH);

	if (!s || !w)
		return 1;
	add_user(s, w, i);
	return 0;
}

/* add_all adds the entries of the call at once. */
static __always_inline void add_all(void)
{
	struct drain_state *s = state();
	struct work *w = work(WORK_BATCH);
	long done;

	if (!s || !w)
		return;
	done = bpf_loop(w->count, add_in_loop, NULL, 0);
	leave_call(s, done < 0 ? w->count : 0);
}

/* add_some adds some entries of the call, and continues with a tail call. */
static __always_inline void add_some(void *ctx)
{
	struct drain_state *s = state();
	struct work *w = work(WORK_BATCH);
	__u32 first;

	if (!s || !w)
		return;
	first = w->next;
	for (__u32 i = 0; i < ENTRIES_PER_TAIL_CALL; i++) {
		if (first + i >= w->count) {
			leave_call(s, 0);
			return;
		}
		add_user(s, w, first + i);
	}
	w->next = first + ENTRIES_PER_TAIL_CALL;
	if (w->next < w->count)
		bpf_tail_call(ctx, &drain_next, 0);
	leave_call(s, w->next < w->count ? w->count - w->next : 0);
}

#endif
