/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * Lookups of keys. A program looks an entry up before it changes the entry in place, through the
 * pointer. That change calls no function of the kernel. The hook on lookups reports the key, and
 * syncd rereads the entry later, when the program has made its change.
 *
 * The hook uses arrays only. A lookup in a hash map would run the hook again, which overflows the
 * stack of a 5.10 kernel.
 */
#ifndef MAPSYNC_LOOKUP_H
#define MAPSYNC_LOOKUP_H

#include "write_context.h"

/* lookup is the last reported lookup among the keys that share an element of the array. */
struct lookup {
	__u32 key;  /* upper half of the hash of key and map */
	__u32 tick; /* jiffies of the event */
};

/* Keys that share an element are reported more often than necessary. */
#define LOOKUPS (1 << 16)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LOOKUPS);
	__type(key, __u32);
	__type(value, struct lookup);
} lookups SEC(".maps");

/* The loader sets them: the pause between two events of a key in jiffies, the maximum number of
 * events of a program on one CPU in a jiffy, and a random number, against attackers who would
 * choose keys with the same hash. */
volatile const __u32 lookup_pause = 25;
volatile const __u32 lookups_per_tick = 64;
volatile const __u64 lookup_seed = 0;

/* Words of a key that are read and hashed together. */
#define CHUNK_WORDS 8

/* hash_key returns a hash of a key in kernel memory. The rest of the key does not count if it
 * cannot be read. */
static __always_inline __u64 hash_key(__u64 hash, __u64 size, const void *key)
{
	for (__u64 at = 0; at < MAX_KEY && at < size; at += CHUNK_WORDS * 8) {
		__u64 words[CHUNK_WORDS] = {};
		__u64 bytes = size - at;

		if (bytes > sizeof(words))
			bytes = sizeof(words);
		asm volatile("" : "+r"(bytes)); /* see BOUND */
		if (bytes > sizeof(words))
			return hash;
		if (bpf_probe_read_kernel(words, bytes, key + at))
			return hash;
#pragma unroll
		for (int i = 0; i < CHUNK_WORDS; i++) {
			hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15;
			hash ^= hash >> 32;
		}
	}
	return hash;
}

/* emit_lookup reports a lookup. syncd's own lookups are left out, and do not begin a pause: a
 * packet may change the entry right after them. */
static __always_inline void emit_lookup(void *ctx, __u32 kind, __u32 id, const struct watch *w,
					const void *key, struct lookup *last,
					const struct lookup *this)
{
	struct slot *s, *base;
	__u32 level;

	s = enter(kind, &base, &level);
	if (!s)
		return;
	if (!emit_own && current_process() == own_process && !in_interrupt(s))
		goto out;
	if (base->tick != this->tick) {
		base->tick = this->tick;
		base->tick_lookups = 0;
	}
	if (base->tick_lookups >= lookups_per_tick) {
		base->unreported++;
		goto out;
	}
	base->tick_lookups++;
	*last = *this;
	emit(ctx, s, kind * LEVELS + level, id, w, OP_LOOKUP, CTX_PROCESS, key, NULL);
out:
	leave(base);
}

/* report_lookup reports the lookup of a key in a watched map, unless it has reported one within
 * lookup_pause. */
static __always_inline int report_lookup(void *ctx, __u32 kind, const struct bpf_map *map,
					 const void *key)
{
	__u32 id = map->id, at;
	struct watch *w = watch_of(id);
	struct lookup *last, this;
	__u64 hash;

	if (!w || !w->lookups)
		return 0;
	hash = hash_key(lookup_seed ^ id, READ_SIZE(w->key_size), key);
	this.key = hash >> 32;
	this.tick = bpf_jiffies64();
	at = hash & (LOOKUPS - 1);
	last = bpf_map_lookup_elem(&lookups, &at);
	if (last && (last->key != this.key || this.tick - last->tick >= lookup_pause))
		emit_lookup(ctx, kind, id, w, key, last, &this);
	return 0;
}

#endif
