/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * The events that BPF programs send to syncd, and the code that sends them.
 *
 * Every program that reports changes of a watched map includes this file: the hooks, and the
 * injector of tests and benchmarks (internal/injector). All of them share the filter, the sequence
 * numbers, the counters and the buffer.
 */
#ifndef MAPSYNC_EVENT_H
#define MAPSYNC_EVENT_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#define MAX_KEY 512
#define MAX_VALUE 4096
#define ALIGN8(n) (((n) + 7) & ~7U)

/* Operations and contexts: the values of table.Op and table.Context. An event with OP_KEYS has the
 * keys of entries that bpf(2) may have changed: their number in 8 bytes, the caller, then the keys
 * without padding. syncd rereads them. An event with OP_DELETED_KEYS is the same for a call that
 * deletes. An event with OP_LOOKUP has the key of an entry that a program has looked up. */
enum op { OP_UPDATE, OP_DELETE, OP_EVICT, OP_KEYS, OP_DELETED_KEYS, OP_LOOKUP };
enum context { CTX_PACKET, CTX_PROCESS, CTX_SYSCALL, CTX_OWN };

/* A kind identifies a program that emits events. Each kind has its own slots, because only runs of
 * the same program exclude each other, or nest like interrupts. */
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
	KIND_ARRAY_UPDATE,
	KIND_PERCPU_ARRAY_SYSCALL,
	KIND_DRAIN,
	KIND_LRU_DRAIN,
	KIND_PERCPU_DRAIN,
	KIND_LRU_PERCPU_DRAIN,
	KIND_SYSCALL,
	KIND_LOOKUP,
	KIND_HASH_LOOKUP,
	KIND_LRU_LOOKUP,
	KIND_PERCPU_LOOKUP,
	KIND_LRU_PERCPU_LOOKUP,
	KIND_INJECTED,
	KINDS,
};

/* A process, a soft interrupt and a hard interrupt can each be inside one program. */
#define LEVELS 3
#define SLOTS (KINDS * LEVELS)

/* event is the head of each event in the buffer. Key and value follow, each padded to 8 bytes.
 * Mirrored by syncd/capture/event.go. */
struct event {
	__u64 seq;  /* number within this CPU and slot, from 1, one for each attempt */
	__u64 time; /* bpf_ktime_get_ns */
	__u32 map_id;
	__u16 cpu;
	__u8 slot;
	__u8 op_context; /* op << 4 | context */
};

/* caller is the process of a delete by bpf(2). It follows the key, or stands before the keys of a
 * call. Mirrored by syncd/capture/event.go. */
struct caller {
	__u32 process; /* in the initial PID namespace */
	__u32 age_ms;  /* time since it started, at most 2^32 - 1 */
	__u64 start;   /* ns since boot, suspend included */
};

/* slot is the memory in which one program builds its event on one CPU at one nesting level. It also
 * holds the counters, which user space reads in place through a memory mapping. Mirrored by
 * syncd/capture/slots.go. */
struct slot {
	__u64 depth;	     /* runs of this kind in progress on this CPU (level 0 only) */
	__u64 seq;	     /* events attempted */
	__u64 seen;	     /* runs for a watched map */
	__u64 failed;	     /* writes that the kernel refused: no event */
	__u64 own;	     /* syncd's own writes: no event */
	__u64 lost;	     /* events attempted and not delivered, because the buffer was full */
	__u64 nested;	     /* runs nested deeper than LEVELS: no event attempted (level 0 only) */
	__u64 preempt_count; /* address of this CPU's preempt count, 0 until resolved */
	__u64 unreported;    /* lookups without an event (level 0 only) */
	__u32 tick;	     /* jiffies of the last addition to credit (level 0 only) */
	__u32 credit;	     /* lookups that may be reported (level 0 only) */
	struct event event;
	__u8 data[MAX_KEY + MAX_VALUE + 16]; /* 16: the verifier rounds both up */
};

/* watch describes a watched map. User space writes it in place through a memory mapping: a bpf(2)
 * write to a hash map would increase the count of skipped runs of each kprobe on this host. */
struct watch {
	__u32 id; /* 0: unused */
	__u32 key_size;
	__u32 value_size; /* 0: events contain the key only */
	__u32 probe_next; /* the next bucket may contain the watch of another map */
	__u32 lookups;	  /* 0: not reported; otherwise another number for each WatchLookups */
	__u32 uses;	  /* 0: uses are not noted; otherwise the secret of the hash, see uses.h */
};

/* The watch of a map is in bucket WATCH_BUCKET(map id), or in one of the next buckets if other maps
 * occupy it. The multiplier spreads map ids that follow each other (Knuth). Mirrored by
 * syncd/capture/watches.go. */
#define WATCH_BITS 12
#define WATCH_BUCKETS (1 << WATCH_BITS)
#define WATCH_BUCKET(id) ((id)*0x9e3779b1U >> (32 - WATCH_BITS))
#define WATCH_PROBES 64 /* user space watches no map whose watch is further away */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, WATCH_BUCKETS);
	__type(key, __u32);
	__type(value, struct watch);
} watches SEC(".maps");

/* The loader multiplies the number of entries by the number of possible CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096); /* set by the loader */
} ring SEC(".maps");

/* The verifier rejects a sleepable program that refers to a perf buffer. */
#ifndef RING_ONLY
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} perf SEC(".maps");

/* Selects the buffer that carries the events. */
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

/* watch_of returns NULL for a map that is not watched. The first probe nearly always decides. */
static __always_inline struct watch *watch_of(__u32 id)
{
	__u32 bucket = WATCH_BUCKET(id);

	for (__u32 i = 0; i < WATCH_PROBES; i++) {
		__u32 at = (bucket + i) % WATCH_BUCKETS;
		struct watch *w = bpf_map_lookup_elem(&watches, &at);

		if (!w)
			return NULL;
		if (w->id == id)
			return w;
		if (!w->probe_next)
			return NULL;
	}
	return NULL;
}

static __always_inline struct slot *slot_at(__u32 kind, __u32 level)
{
	__u32 i = bpf_get_smp_processor_id() * SLOTS + kind * LEVELS + level;

	return bpf_map_lookup_elem(&slots, &i);
}

/* enter_level returns the slot for this run, or NULL if the nesting is too deep. It sets base to
 * the slot that leave() needs. Interrupts nest, so plain increments are safe. */
static __always_inline struct slot *enter_level(__u32 kind, struct slot **base, __u32 *level)
{
	struct slot *s = slot_at(kind, 0);

	*base = s;
	if (!s)
		return NULL;
	*level = s->depth++;
	if (!*level)
		return s;
	if (*level < LEVELS) {
		struct slot *deeper = slot_at(kind, *level);

		if (deeper)
			return deeper;
	}
	s->depth--;
	return NULL;
}

/* enter is enter_level for an event whose loss counts. */
static __always_inline struct slot *enter(__u32 kind, struct slot **base, __u32 *level)
{
	struct slot *s = enter_level(kind, base, level);

	if (!s && *base)
		(*base)->nested++;
	return s;
}

static __always_inline void leave(struct slot *base)
{
	base->depth--;
}

/* Reads a size directly before it is checked and used. On kernels before 6.4 the verifier loses the
 * bounds of a number that the compiler spills to the stack in between. */
#define READ_SIZE(size) (*(const volatile __u32 *)&(size))

/* The same for a number that is not read from memory: repeats a bounds check that always holds. The
 * asm statement keeps the compiler from removing it. */
#define BOUND(v, most)                      \
	do {                                \
		asm volatile("" : "+r"(v)); \
		if (v > (most))             \
			goto lost;          \
	} while (0)

/* begin_event fills the head of the next event of s. */
static __always_inline void begin_event(struct slot *s, __u32 slot, __u32 id, enum op op,
					enum context context)
{
	s->event.seq = ++s->seq;
	s->event.time = bpf_ktime_get_ns();
	s->event.map_id = id;
	s->event.cpu = bpf_get_smp_processor_id();
	s->event.slot = slot;
	s->event.op_context = op << 4 | context;
}

/* emit sends the change in s to user space. It uses a sequence number before the attempt, so user
 * space detects a gap if the attempt fails. key and value are kernel addresses. value is NULL for
 * operations without a value. For a delete, it is NULL or the caller. */
static __always_inline void emit(void *ctx, struct slot *s, __u32 slot, __u32 id,
				 const struct watch *w, enum op op, enum context context,
				 const void *key, const void *value)
{
	__u32 key_size = READ_SIZE(w->key_size), value_size, padded, len;

	begin_event(s, slot, id, op, context);
	if (key_size > MAX_KEY)
		goto lost; /* user space refuses such maps */
	padded = ALIGN8(key_size);
	if (bpf_probe_read_kernel(s->data, key_size, key))
		goto lost;
	len = sizeof(s->event) + padded;
	if (value) {
		value_size = op == OP_UPDATE ? READ_SIZE(w->value_size) : sizeof(struct caller);
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
