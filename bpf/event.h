/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * What a BPF program hands to the daemon, and the one way in which it does.
 *
 * Every program that reports a change of a watched map (the hooks, and the feed
 * of tests and benchmarks) includes this file, so that all of them share the
 * filter, the sequence numbers, the accounting and the buffer.
 */
#ifndef MAPSYNC_EVENT_H
#define MAPSYNC_EVENT_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#define MAX_KEY 512
#define MAX_VALUE 4096
#define ALIGN8(n) (((n) + 7) & ~7U)

/* Operations and contexts: the values of table.Op and table.Context. */
enum op { OP_UPDATE, OP_DELETE, OP_EVICT };
enum context { CTX_PACKET, CTX_PROCESS, CTX_SYSCALL, CTX_OWN };

/* A kind is a program that emits. Each has slots of its own, because only runs
 * of one program keep each other out (or nest like interrupts do). */
enum kind {
	KIND_UPDATE,
	KIND_LRU_UPDATE,
	KIND_DELETE,
	KIND_LRU_DELETE,
	KIND_LOOKUP_DELETE,
	KIND_LRU_LOOKUP_DELETE,
	KIND_EVICT,
	KIND_PERCPU_UPDATE,
	KIND_LRU_PERCPU_UPDATE,
	KIND_PERCPU_SYSCALL,
	KIND_PERCPU_LOOKUP_DELETE,
	KIND_LRU_PERCPU_LOOKUP_DELETE,
	KIND_FEED,
	KINDS,
};

/* Process, soft interrupt and hard interrupt can each be inside one program. */
#define LEVELS 3
#define SLOTS (KINDS * LEVELS)

/* event heads each record; key and value follow, each padded to 8 bytes.
 * Mirrored by capture/event.go. */
struct event {
	__u64 seq;  /* of this CPU and slot, from 1, one for each attempt */
	__u64 time; /* bpf_ktime_get_ns */
	__u32 map_id;
	__u16 cpu;
	__u8 slot;
	__u8 op_context; /* op << 4 | context */
};

/* slot is where one program builds its event on one CPU at one nesting level,
 * and counts. User space maps the array and reads the counters in place.
 * Mirrored by capture/slots.go. */
struct slot {
	__u64 depth;   /* runs now inside this kind on this CPU (level 0 only) */
	__u64 seq;     /* events attempted */
	__u64 seen;    /* runs for a watched map */
	__u64 failed;  /* the kernel refused the write: no event */
	__u64 own;     /* the daemon's own writes: no event */
	__u64 lost;    /* the buffer was full: an event attempted and not delivered */
	__u64 nested;  /* deeper than LEVELS: not even attempted (level 0 only) */
	__u64 preempt_count; /* address of this CPU's preempt count, 0 until known */
	struct event event;
	__u8 data[MAX_KEY + MAX_VALUE + 16]; /* 16: the verifier rounds both up */
};

/* watch is what user space says of a map it watches. It writes them in place: a
 * bpf(2) write of a hash map would count as a run that each kprobe on this host
 * has skipped. */
struct watch {
	__u32 id; /* 0: none */
	__u32 key_size;
	__u32 value_size; /* 0: events carry the key alone */
	__u32 more;	  /* another map's id may stand in the next place */
};

/* Where the watch of a map stands: at its id modulo WATCHES, or in one of the next
 * places when others have taken that. Mirrored by capture/watches.go. */
#define WATCHES 4096
#define PROBES 64 /* as many as maps can be watched */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, WATCHES);
	__type(key, __u32);
	__type(value, struct watch);
} watches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SLOTS); /* times the possible CPUs, set by the loader */
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096); /* set by the loader */
} ring SEC(".maps");

/* A sleepable program may not even name a perf buffer. */
#ifndef RING_ONLY
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} perf SEC(".maps");

/* Which of the two buffers carries the events. */
volatile const bool use_perf = false;
#endif

static __always_inline long output(void *ctx, void *data, __u32 len)
{
#ifndef RING_ONLY
	if (use_perf)
		return bpf_perf_event_output(ctx, &perf, BPF_F_CURRENT_CPU, data, len);
#endif
	return bpf_ringbuf_output(&ring, data, len, 0);
}

/* watch_of returns NULL for a map that is not watched: nearly always at the first
 * look. */
static __always_inline struct watch *watch_of(__u32 id)
{
	for (__u32 i = 0; i < PROBES; i++) {
		__u32 at = (id + i) % WATCHES;
		struct watch *w = bpf_map_lookup_elem(&watches, &at);

		if (!w)
			return NULL;
		if (w->id == id)
			return w;
		if (!w->more)
			return NULL;
	}
	return NULL;
}

static __always_inline struct slot *slot_at(__u32 kind, __u32 level)
{
	__u32 i = bpf_get_smp_processor_id() * SLOTS + kind * LEVELS + level;

	return bpf_map_lookup_elem(&slots, &i);
}

/* enter returns the slot for this run, or NULL when it is nested too deep. base
 * gets the slot that leave() needs. Interrupts nest, so plain increments do. */
static __always_inline struct slot *enter(__u32 kind, struct slot **base, __u32 *level)
{
	struct slot *s = slot_at(kind, 0);

	if (!s)
		return NULL;
	*base = s;
	*level = s->depth++;
	if (!*level)
		return s;
	if (*level < LEVELS) {
		struct slot *deeper = slot_at(kind, *level);

		if (deeper)
			return deeper;
	}
	s->nested++;
	s->depth--;
	return NULL;
}

static __always_inline void leave(struct slot *base)
{
	base->depth--;
}

/* Read a size right where it is checked and used: kernels before 6.4 forget the
 * bounds of a number that the compiler keeps on the stack meanwhile. */
#define READ_SIZE(size) (*(const volatile __u32 *)&(size))

/* The same for a number that is no size in memory: say once more, where the compiler
 * cannot know it, what is so. */
#define BOUND(v, most)                                                                      \
	asm volatile("" : "+r"(v));                                                         \
	if (v > (most))                                                                     \
		goto lost

/* emit sends the change in s to user space. A number is used up before the
 * attempt, so that user space sees a gap where one fails. key and value are
 * kernel addresses; a NULL value means that the operation has none. */
static __always_inline void emit(void *ctx, struct slot *s, __u32 slot, __u32 id,
				 const struct watch *w, enum op op, enum context context,
				 const void *key, const void *value)
{
	__u32 key_size = READ_SIZE(w->key_size), value_size, padded, len;

	s->event.seq = ++s->seq;
	s->event.time = bpf_ktime_get_ns();
	s->event.map_id = id;
	s->event.cpu = bpf_get_smp_processor_id();
	s->event.slot = slot;
	s->event.op_context = op << 4 | context;
	if (key_size > MAX_KEY)
		goto lost; /* user space refuses such maps */
	padded = ALIGN8(key_size);
	if (bpf_probe_read_kernel(s->data, key_size, key))
		goto lost;
	len = sizeof(s->event) + padded;
	if (value) {
		value_size = READ_SIZE(w->value_size);
		if (value_size > MAX_VALUE)
			goto lost;
		BOUND(padded, MAX_KEY);
		if (bpf_probe_read_kernel(s->data + padded, value_size, value))
			goto lost;
		len += ALIGN8(value_size);
	}
	BOUND(len, sizeof(s->event) + MAX_KEY + MAX_VALUE);
	if (!output(ctx, &s->event, len))
		return;
lost:
	s->lost++;
}

#endif
