/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * Reads a hash map bucket by bucket. bpf(2) and iterators pass any number of empty buckets in one
 * call, and keep the processor busy meanwhile. A run of this program visits a bounded number of
 * buckets and elements.
 *
 * The layout of the map is that of kernel/bpf/hashtab.c, relocated by the kernel's BTF. A bucket is
 * a list that ends with an odd number: the index of the bucket times two, plus one.
 *
 * access.bpf.c includes this file after its constants.
 */
#ifndef MAPSYNC_BUCKETS_H
#define MAPSYNC_BUCKETS_H

#include <bpf/bpf_core_read.h>

struct hlist_nulls_node {
	struct hlist_nulls_node *next, **pprev;
} __attribute__((preserve_access_index));

struct hlist_nulls_head {
	struct hlist_nulls_node *first;
} __attribute__((preserve_access_index));

struct bucket {
	struct hlist_nulls_head head;
} __attribute__((preserve_access_index));

struct htab_elem {
	struct hlist_nulls_node hash_node;
	char key[0]; /* then the value, at a multiple of 8 bytes */
} __attribute__((preserve_access_index));

struct bpf_htab {
	struct bucket *buckets;
	__u32 n_buckets;
} __attribute__((preserve_access_index));

/* Buckets whose heads are read together, and the maximum size of a bucket: kernels that debug locks
 * have larger ones. */
#define HEADS 32
#define MAX_BUCKET_BYTES 64

/* Steps of one run. A step is one element, the end of a bucket, or up to HEADS empty buckets. A
 * packet waits for a run, because the run keeps bottom halves off. */
#define READ_STEPS 64

/* Maximum size of a key in words of 8 bytes. */
#define MAX_KEY_WORDS 64

/* cursor.bucket at the end of the map. */
#define READ_END 0xffffffff

/* read_state is the state of a run. It is in a map, so that the verifier checks a step once for all
 * states. */
struct read_state {
	__u64 next;	 /* element to visit, odd at the end of the bucket, 0: not read yet */
	__u32 bucket;	 /* bucket of next */
	__u32 head;	 /* index of that bucket in heads */
	__u32 heads_end; /* number of heads */
	__u32 n;	 /* entries read */
	__u32 finished;	 /* entries of finished buckets */
	__u8 heads[HEADS * MAX_BUCKET_BYTES];
	__u64 key[MAX_KEY_WORDS]; /* of the element, reread after the value */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct read_state);
} read_state SEC(".maps");

/* read_heads reads the heads of the next buckets. left is the number of buckets up to the last one.
 * It returns false on error. */
static __always_inline bool read_heads(struct read_state *w, const void *buckets, __u32 left)
{
	__u64 size = bpf_core_type_size(struct bucket), bytes;

	w->head = 0;
	w->heads_end = left < HEADS ? left : HEADS;
	bytes = w->heads_end * size;
	return bytes <= sizeof(w->heads) &&
	       !bpf_probe_read_kernel(w->heads, bytes, buckets + w->bucket * size);
}

/* next_bucket moves on to the next bucket that has an element, or to the end of the heads. */
static __always_inline void next_bucket(struct read_state *w)
{
	__u64 size = bpf_core_type_size(struct bucket), next = 0;
	__u32 head = w->head, bucket = w->bucket;

	for (int i = 0; i < HEADS && head < w->heads_end; i++) {
		__u64 at = head * size;

		if (at > sizeof(w->heads) - sizeof(next))
			break;
		next = *(__u64 *)(w->heads + at);
		if (!(next & 1))
			break;
		next = 0;
		head++;
		bucket++;
	}
	w->next = next;
	w->head = head;
	w->bucket = bucket;
	w->finished = w->n;
}

/* retry_bucket begins again with a bucket. */
static __always_inline int retry_bucket(struct read_state *w)
{
	w->next = 0;
	w->heads_end = 0;
	w->n = w->finished;
	return 1;
}

/* is_linked returns true if an element is in a bucket: its pprev points to a pointer to it.
 * The kernel may write a new key into an element that it links later, or never: into an LRU map
 * with BPF_EXIST, for example. */
static __always_inline bool is_linked(const struct htab_elem *elem)
{
	const void *pprev = NULL, *self = NULL;

	bpf_core_read(&pprev, sizeof(pprev), &elem->hash_node.pprev);
	return !bpf_probe_read_kernel(&self, sizeof(self), pprev) && self == elem;
}

/* read_element copies an element into e. It returns false if the element has left its bucket
 * meanwhile. The kernel may then reuse it for another key, which it writes before the value. An
 * element that is linked after its key was read is complete, and one that still has that key at the
 * end was not reused. */
static __always_inline bool read_element(struct read_state *w, struct entry *e)
{
	const struct htab_elem *elem = (void *)w->next;
	const void *key = (void *)elem + bpf_core_field_offset(struct htab_elem, key);

	if (bpf_probe_read_kernel(e->key, key_size, key) || !is_linked(elem))
		return false;
	if (keys_only)
		return true;
	if (bpf_probe_read_kernel((void *)e + value_offset, value_size, key + ALIGN8(key_size)) ||
	    bpf_probe_read_kernel(w->key, key_size, key))
		return false;
	for (__u32 i = 0; i < MAX_KEY_WORDS && i < ALIGN8(key_size) / 8; i++)
		if (w->key[i] != ((__u64 *)e->key)[i])
			return false;
	return true;
}

/* read_step makes one step. It returns 0 at the end of the run: at the end of the map, if the slots
 * are full, or on error. A global function, which the verifier checks once. */
__weak __attribute__((noinline)) int read_step(void)
{
	struct bpf_htab *htab = (void *)&target;
	__u32 zero = 0, n;
	struct read_state *w = bpf_map_lookup_elem(&read_state, &zero);
	struct cursor *c = bpf_map_lookup_elem(&cursor, &zero);
	struct entry *e;

	if (!w || !c)
		return 0;
	if (!w->next) {
		if (w->bucket >= htab->n_buckets)
			return 0;
		if (w->head >= w->heads_end &&
		    !read_heads(w, htab->buckets, htab->n_buckets - w->bucket))
			return 0;
		next_bucket(w);
		return 1;
	}
	if (w->next & 1) {
		/* An element that moved to another bucket may have hidden the rest of this one. */
		if ((__u32)(w->next >> 1) != w->bucket)
			return retry_bucket(w);
		w->head++;
		w->bucket++;
		next_bucket(w);
		return 1;
	}
	n = w->n;
	e = bpf_map_lookup_elem(&entries, &n);
	if (!e || n >= c->end)
		return 0;
	if (!read_element(w, e))
		return retry_bucket(w);
	if (bpf_probe_read_kernel(&w->next, sizeof(w->next), (void *)w->next))
		return 0;
	w->n = n + 1;
	return 1;
}

/* In the cursor, bucket is the first bucket of the next run, next the number of entries read, and
 * end that of the slots. A run begins at the first element of a bucket, and leaves out the entries
 * of a bucket that it has not finished. Only during a run does the kernel keep elements from being
 * freed. */
SEC("cgroup_skb/ingress")
int mapsync_read(struct __sk_buff *skb)
{
	struct bpf_htab *htab = (void *)&target;
	__u32 zero = 0;
	struct read_state *w = bpf_map_lookup_elem(&read_state, &zero);
	struct cursor *c = bpf_map_lookup_elem(&cursor, &zero);

	if (!c || !w || c->bucket == READ_END)
		return 1;
	w->next = 0;
	w->heads_end = 0;
	w->bucket = c->bucket;
	w->n = w->finished = c->next;
	for (int i = 0; i < READ_STEPS && read_step(); i++)
		;
	c->next = w->finished;
	c->bucket = w->bucket < htab->n_buckets ? w->bucket : READ_END;
	return 1;
}

#endif
