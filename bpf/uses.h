/* SPDX-License-Identifier: (GPL-2.0 OR BSD-2-Clause) */
/*
 * Uses of entries. A program that only looks an entry up changes nothing that syncd could read. For
 * maps whose entries expire after a takeover, the hooks note each lookup and each write of a
 * program in an array that syncd reads in place.
 *
 * A word of the array is the time of the last use among the keys that share it. A key has two words
 * in one cache line, and both have the time of its last use or of a later one. Keys that share
 * words therefore never hide a use. The hook uses arrays only, see lookup.h.
 */
#ifndef MAPSYNC_USES_H
#define MAPSYNC_USES_H

#include "write_context.h"

#define USE_BITS 17
#define USE_BLOCKS (1 << USE_BITS)
#define USE_WORDS 16
#define USE_FACTOR 0x9e3779b97f4a7c15ULL

struct use_block {
	__u32 words[USE_WORDS];
};

/* Block 0 has the present time, which user space advances, and the number of uses that could not be
 * noted. The time counts from 1. The loader keeps only that block if no map needs the others. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 + USE_BLOCKS);
	__type(key, __u32);
	__type(value, struct use_block);
} uses SEC(".maps");

/* Bytes of the key that are hashed at a time. */
#define USE_CHUNK 64

/* use_hash returns a hash of a key. The secret of the watch keeps attackers from choosing keys that
 * share words. Mirrored by syncd/capture/uses.go. It returns false if the key cannot be read. */
static __always_inline bool use_hash(const struct watch *w, const void *key, __u64 *hash)
{
	__u64 chunk[USE_CHUNK / 8], h = w->uses * USE_FACTOR;
	__u64 key_size = READ_SIZE(w->key_size), at,
	      len; /* 64 bits: the verifier keeps their bounds */

#pragma clang loop unroll(disable)
	for (at = 0; at < MAX_KEY; at += USE_CHUNK) {
		if (at >= key_size)
			break;
		len = key_size - at;
		if (len > USE_CHUNK)
			len = USE_CHUNK;
		__builtin_memset(chunk, 0, sizeof(chunk));
		BOUND(len, USE_CHUNK);
		if (bpf_probe_read_kernel(chunk, len, key + at))
			goto lost;
#pragma unroll
		for (int i = 0; i < USE_CHUNK / 8; i++) {
			h = (h ^ chunk[i]) * USE_FACTOR;
			h ^= h >> 29;
		}
	}
	*hash = h;
	return true;
lost:
	return false;
}

/* in_bpf_lookup returns true if the current task is inside a bpf(2) call that copies an entry. On
 * kernels before 5.15, which have no helper for the registers, it is always false. */
static __always_inline bool in_bpf_lookup(void)
{
	struct pt_regs___kernel *regs;
	bool compat;

	if (!bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_task_pt_regs))
		return false;
	regs = task_registers();
	compat = in_compat_call((void *)bpf_get_current_task());
	return in_bpf_call(regs, compat) && call_argument(regs, 0, compat) == BPF_MAP_LOOKUP_ELEM;
}

/* note_use notes that a program has used an entry. Uses by syncd are left out, and lookups by
 * bpf(2) if copies is set. */
static __always_inline void note_use(__u32 kind, const struct watch *w, const void *key,
				     bool copies)
{
	struct use_block *present, *block;
	__u32 at = 0, now, first, second;
	struct slot *s;
	__u64 h;

	present = bpf_map_lookup_elem(&uses, &at);
	if (!present)
		return;
	now = *(volatile __u32 *)&present->words[0];
	if (!use_hash(w, key, &h)) {
		__sync_fetch_and_add(&present->words[1], 1);
		return;
	}
	at = 1 + (h >> (64 - USE_BITS));
	block = bpf_map_lookup_elem(&uses, &at);
	if (!block)
		return;
	first = h & (USE_WORDS - 1);
	second = (h >> 4) & (USE_WORDS - 1);
	if (*(volatile __u32 *)&block->words[first] == now &&
	    *(volatile __u32 *)&block->words[second] == now)
		return;
	s = slot_at(kind, 0);
	if (copies && !emit_own && s && !in_interrupt(s) &&
	    (current_process() == own_process || in_bpf_lookup()))
		return;
	*(volatile __u32 *)&block->words[first] = now;
	*(volatile __u32 *)&block->words[second] = now;
}

#endif
