//go:build ignore

// SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause)
/*
 * The programs with which syncd reads and writes a watched map without bpf(2). bpf(2) calls would
 * hide the data plane's writes from the hooks.
 *
 * syncd loads one instance per map. Entries are passed in arrays that user space maps into its
 * memory. The sizes are constants, so the verifier can check them.
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <stdbool.h>
#include <stddef.h>

#include "own_write_marks.h"

/* Entries handled in one test run. With more entries, a packet waits longer, because the run keeps
 * bottom halves off. With fewer entries, the overhead per run dominates. */
#define RUN_ENTRIES 16

#define ALIGN8(n) (((n) + 7) & ~7U)

/* Maximum number of ranges of a value that an update may keep unchanged. */
#define KEEP_RANGES 512

enum op {
	OP_NONE, /* nothing to do, or already done */
	OP_UPDATE,
	OP_DELETE,
};

/* An entry consists of this head, the key padded to 8 bytes, and the value. */
struct entry {
	__u32 op;
	__s32 rc;
	__u8 key[];
};

/* Progress of the runs of one burst. A signal ends a repeated test run early, so user space reads
 * the progress from here. next and end count entries, or, for per-CPU values, the CPUs of all
 * entries. */
struct cursor {
	__u32 next;
	__u32 end;
	__u32 failed;
	__u32 bucket; /* bucket of the UDP socket of the last soft-interrupt safe run */
};

struct range {
	__u32 offset;
	__u32 size;
};

const volatile __u32 key_size = 4;
const volatile __u32 value_size = 4;	/* with per-CPU values: size of all of them together */
const volatile __u32 value_offset = 16; /* offset of the value in an entry */
const volatile __u32 lock_offset = 0;	/* offset of the bpf_spin_lock in a value */
const volatile __u64 update_flags = 0;
const volatile bool keys_only = false;

/* The map is an array. Its elements cannot be deleted, and have no key in front of their value. */
const volatile bool is_array = false;

/* For a map with per-CPU values: number of values, and size of one value. */
const volatile __u32 cpus = 1;
const volatile __u32 elem_size = 4;

/* The ranges of a value that an update keeps as they are in the map. If keep_count is 0, the
 * verifier removes the code for it. */
const volatile __u32 keep_count = 0;
const volatile struct range keep[KEEP_RANGES] = {};

/* The map to read and write. syncd replaces it with the watched map at load. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, 4);
} target SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, 24);
} entries SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cursor);
} cursor SEC(".maps");

/* One key and value for bpf_seq_write, which accepts no pointer into a map element that an iterator
 * received. Only one reader may run at a time. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, 8);
} scratch SEC(".maps");

/* keep_ranges copies the ranges to keep from the map's entry into e, if the entry exists. It reads
 * without the value's lock, because a program may not call a helper while it holds that lock. */
static __always_inline void keep_ranges(struct entry *e)
{
	void *value = (void *)e + value_offset;
	void *current = bpf_map_lookup_elem(&target, e->key);

	if (!current)
		return;
	for (__u32 i = 0; i < KEEP_RANGES; i++) {
		if (i >= keep_count)
			break;
		bpf_probe_read_kernel(value + keep[i].offset, keep[i].size,
				      current + keep[i].offset);
	}
}

static __always_inline int write_entry(struct entry *e)
{
	int rc;

	if (e->op == OP_UPDATE) {
		if (keep_count)
			keep_ranges(e);
		return bpf_map_update_elem(&target, e->key, (void *)e + value_offset, update_flags);
	}
	if (e->op != OP_DELETE)
		return 0;
	/* An absent entry is the requested result. */
	if (is_array) { /* user space has set the value to zero */
		rc = bpf_map_update_elem(&target, e->key, (void *)e + value_offset, update_flags);
		return rc == -E2BIG ? 0 : rc;
	}
	rc = bpf_map_delete_elem(&target, e->key);
	return rc == -ENOENT ? 0 : rc;
}

/* write_while_marked writes the next entries. The caller holds the CPU's mark. */
static __always_inline void write_while_marked(struct cursor *c, volatile struct own_mark *own)
{
	__u32 at = c->next, failed = c->failed;

	own->task = bpf_get_current_task();
	for (int i = 0; i < RUN_ENTRIES; i++) {
		struct entry *e;

		if (at >= c->end)
			break;
		e = bpf_map_lookup_elem(&entries, &at);
		if (!e)
			break;
		if (e->op != OP_NONE) {
			e->rc = write_entry(e);
			if (e->rc)
				failed++;
		}
		at++;
	}
	own->task = 0;
	c->failed = failed;
	c->next = at;
}

/* A run that finds another run in progress on this CPU writes nothing, and user space retries. */
static __always_inline int write_run(void)
{
	__u32 zero = 0;
	struct cursor *c = bpf_map_lookup_elem(&cursor, &zero);
	volatile struct own_mark *own = bpf_map_lookup_elem(&own_write_marks, (void *)&zero);

	if (!c || !own)
		return 1;
	if (take_own_mark(own))
		write_while_marked(c, own);
	release_own_mark(own);
	return 1;
}

SEC("cgroup_skb/ingress")
int mapsync_write(struct __sk_buff *skb)
{
	return write_run();
}

struct bpf_iter__udp {
	void *udp_sk;
	int bucket;
} __attribute__((preserve_access_index));

/* The soft-interrupt safe variant, for kernels on which packets can interrupt a test run. From 5.9
 * to 6.5, an iterator over UDP sockets calls the program for each socket with its bucket's lock
 * held and bottom halves off. The return value of 1 requests a retry, which ends the read. The next
 * read continues at the same socket. */
SEC("iter/udp")
int mapsync_write_softirq_safe(struct bpf_iter__udp *ctx)
{
	__u32 zero = 0;
	struct cursor *c = bpf_map_lookup_elem(&cursor, &zero);

	if (!ctx->udp_sk || !c)
		return 0; /* end of the iteration: no lock is held */
	c->bucket = ctx->bucket;
	return write_run();
}

static __always_inline void copy_value(struct entry *e, const void *value)
{
	bpf_probe_read_kernel((void *)e + value_offset, value_size, value);
}

/* copy_locked copies the value while it holds the value's lock. No helper may be called meanwhile.
 * The lock itself reads as zero, as in a bpf(2) lookup. */
static __always_inline void copy_locked(struct entry *e, void *value)
{
	struct bpf_spin_lock *lock = value + lock_offset;
	void *to = (void *)e + value_offset;
	__u32 i;

	bpf_spin_lock(lock);
	for (i = 0; i + 4 <= value_size; i += 4)
		if (i != lock_offset)
			*(__u32 *)(to + i) = *(__u32 *)(value + i);
	for (; i < value_size; i++)
		*(__u8 *)(to + i) = *(__u8 *)(value + i);
	bpf_spin_unlock(lock);
	*(__u32 *)(to + lock_offset) = 0;
}

static __always_inline int lookup(bool locked)
{
	__u32 zero = 0, at;
	struct cursor *c = bpf_map_lookup_elem(&cursor, &zero);

	if (!c)
		return 1;
	at = c->next;
	for (int i = 0; i < RUN_ENTRIES; i++) {
		struct entry *e;
		void *value;

		if (at >= c->end)
			break;
		e = bpf_map_lookup_elem(&entries, &at);
		if (!e)
			break;
		value = bpf_map_lookup_elem(&target, e->key);
		if (!value) {
			e->rc = -ENOENT;
		} else {
			if (locked)
				copy_locked(e, value);
			else
				copy_value(e, value);
			/* The kernel may have reused the element for another key. It writes the
			 * key first, and the key is in front of the value. */
			if (!is_array)
				bpf_probe_read_kernel(e->key, key_size, value - ALIGN8(key_size));
		}
		at++;
	}
	c->next = at;
	return 1;
}

SEC("cgroup_skb/ingress")
int mapsync_lookup(struct __sk_buff *skb)
{
	return lookup(false);
}

SEC("cgroup_skb/ingress")
int mapsync_lookup_locked(struct __sk_buff *skb)
{
	return lookup(true);
}

/* From 5.19, a program can read the value of one CPU at a time: each step is one CPU of one entry.
 * All numbers have 64 bits. Otherwise the compiler would compare a copy of cpu, and the verifier
 * would not derive the bounds of cpu itself. */
SEC("cgroup_skb/ingress")
int mapsync_lookup_percpu(struct __sk_buff *skb)
{
	__u32 zero = 0, slot;
	struct cursor *c = bpf_map_lookup_elem(&cursor, &zero);
	__u64 at, n, cpu;

	if (!c)
		return 1;
	at = c->next;
	n = at / cpus;
	cpu = at % cpus;
	for (int i = 0; i < RUN_ENTRIES; i++) {
		struct entry *e;
		void *value;

		if (at >= c->end)
			break;
		if (cpu >= cpus) {
			cpu = 0;
			n++;
		}
		slot = n;
		e = bpf_map_lookup_elem(&entries, &slot);
		if (!e)
			break;
		value = bpf_map_lookup_percpu_elem(&target, e->key, cpu);
		if (!value)
			e->rc = -ENOENT;
		else
			bpf_probe_read_kernel((void *)e + value_offset + cpu * ALIGN8(elem_size),
					      elem_size, value);
		cpu++;
		at++;
	}
	c->next = at;
	return 1;
}

#include "buckets.h"

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	void *key;
	void *value;
} __attribute__((preserve_access_index));

SEC("iter/bpf_map_elem")
int mapsync_dump(struct bpf_iter__bpf_map_elem *ctx)
{
	void *key = ctx->key, *value = ctx->value;
	struct seq_file *seq = ctx->meta->seq;
	__u32 zero = 0, size = key_size;
	void *out;

	if (!key || !value)
		return 0;
	out = bpf_map_lookup_elem(&scratch, &zero);
	if (!out)
		return 0;
	bpf_probe_read_kernel(out, key_size, key);
	if (!keys_only) {
		bpf_probe_read_kernel(out + key_size, value_size, value);
		size += value_size;
	}
	bpf_seq_write(seq, out, size);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
