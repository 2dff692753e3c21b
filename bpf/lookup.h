/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * Lookups of entries. A program looks an entry up before it changes the entry in place, through the
 * pointer. That change calls no function of the kernel. The hook on lookups reports the key, and
 * syncd rereads the entry later, when the program has made its change.
 *
 * The hook uses arrays only. A lookup in a hash map would run the hook again, which overflows the
 * stack of a 5.10 kernel.
 */
#ifndef MAPSYNC_LOOKUP_H
#define MAPSYNC_LOOKUP_H

#include "uses.h"

/* An element is the last reported lookup among the entries that share it: a tag of the entry in the
 * upper 40 bits, and the jiffies of the event in the lower 24. Entries that share an element are
 * reported more often than necessary. The element and the tag together hold 56 bits of the entry's
 * number. Two entries with the same bits would hide each other's lookups. */
#define LOOKUPS (1 << 16)
#define LOOKUP_TICKS 0xffffff
#define LOOKUP_ELEMENT(number) ((__u32)(((number) >> 32) + (number)) % LOOKUPS)
#define LOOKUP_TAG(number) (((number) >> 32 << 8 | (__u8)((number) >> 16)) << 24)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LOOKUPS);
	__type(key, __u32);
	__type(value, __u64);
} lookups SEC(".maps");

/* The loader sets them: the pause between two events of an entry in jiffies, the events that one
 * program may send from one CPU in a jiffy, and those that it may send at once after a time without
 * events. */
volatile const __u32 lookup_pause = 25;
volatile const __u32 lookups_per_tick = 128;
volatile const __u32 lookup_burst = 3200;

/* The generation of the watch differs for each WatchLookups, and so do the numbers of all entries.
 */
#define GENERATION(w) ((w)->lookups * 0x9e3779b97f4a7c15ULL)

/* number_of returns a number that identifies an element and its key. The hash of the key depends on
 * a random number of the map (htab_map_hash), against attackers who would choose keys. */
static __always_inline __u64 number_of(const struct watch *w, const struct htab_elem *elem)
{
	return ((__u64)BPF_CORE_READ(elem, hash) << 32 | (__u32)((__u64)elem >> 3)) + GENERATION(w);
}

/* number_of_cpu_values returns a number that identifies the values of all CPUs of an entry. values
 * is their address without the offset of a CPU. The factor distributes an address over all bits:
 * LOOKUP_TAG omits some. */
static __always_inline __u64 number_of_cpu_values(const struct watch *w, __u64 values)
{
	return (values >> 3) * 0x9e3779b97f4a7c15ULL + GENERATION(w);
}

/* cpu_values returns the address of the values in an element of a map with per-CPU values, whose
 * key is a multiple of 8 bytes. Kernels differ in where other elements have it. */
static __always_inline __u64 cpu_values(const struct watch *w, const struct htab_elem *elem)
{
	__u64 values = 0;

	bpf_probe_read_kernel(&values, sizeof(values),
			      (void *)elem + bpf_core_field_offset(struct htab_elem, key) +
				      ALIGN8(w->key_size));
	return values;
}

/* may_report takes one event from the credit of a program on this CPU. */
static __always_inline bool may_report(struct slot *base, __u32 now)
{
	__u32 ticks = now - base->tick;

	if (ticks > lookup_pause)
		ticks = lookup_pause;
	base->credit += ticks * lookups_per_tick;
	if (base->credit > lookup_burst)
		base->credit = lookup_burst;
	base->tick = now;
	if (!base->credit)
		return false;
	base->credit--;
	return true;
}

/* has_room returns false if lookups would take the space of writes in the ring buffer. */
static __always_inline bool has_room(void)
{
	if (use_perf)
		return true;
	return bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) <=
	       bpf_ringbuf_query(&ring, BPF_RB_RING_SIZE) / 2;
}

/* emit_lookup sends the key of a lookup. It returns false if that fails, which does not count as a
 * loss: the sequence has no gap. */
static __always_inline bool emit_lookup(void *ctx, struct slot *s, __u32 slot, __u32 id,
					const struct watch *w, const void *key)
{
	__u32 key_size = READ_SIZE(w->key_size), len;

	begin_event(s, slot, id, OP_LOOKUP, CTX_PROCESS);
	if (key_size > MAX_KEY)
		goto lost; /* user space refuses such maps */
	if (bpf_probe_read_kernel(s->data, key_size, key))
		goto lost;
	len = sizeof(s->event) + ALIGN8(key_size);
	BOUND(len, sizeof(s->event) + MAX_KEY);
	if (!output(ctx, &s->event, len))
		return true;
lost:
	s->seq--;
	return false;
}

/* report_lookup reports a lookup that has found an entry, unless it has reported one of the entry
 * within lookup_pause. number identifies the entry: the kernel may reuse its memory for another
 * key. Lookups that only copy the entry are left out, and syncd's own ones. They do not begin a
 * pause: a packet may change the entry right after them. */
static __always_inline int report_lookup(void *ctx, __u32 kind, __u32 id, const struct watch *w,
					 const void *key, __u64 number)
{
	__u32 now = bpf_jiffies64(), at = LOOKUP_ELEMENT(number), level;
	__u64 *element = bpf_map_lookup_elem(&lookups, &at), last;
	struct slot *s, *base;

	if (!element)
		return 0;
	last = *(volatile __u64 *)element;
	if ((last & ~(__u64)LOOKUP_TICKS) == LOOKUP_TAG(number) &&
	    ((now - (__u32)last) & LOOKUP_TICKS) < lookup_pause)
		return 0;
	s = enter_level(kind, &base, &level);
	if (!s)
		goto unreported;
	if (!emit_own && !in_interrupt(s) &&
	    (current_process() == own_process || in_bpf_lookup())) {
		leave(base);
		return 0;
	}
	if (may_report(base, now) && has_room() &&
	    emit_lookup(ctx, s, kind * LEVELS + level, id, w, key)) {
		*(volatile __u64 *)element = LOOKUP_TAG(number) | (now & LOOKUP_TICKS);
		leave(base);
		return 0;
	}
	leave(base);
unreported:
	if (base)
		base->unreported++;
	return 0;
}

#endif
