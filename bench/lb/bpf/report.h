/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Reports of writes by the load balancer itself, in place of hooks, for measurements on kernels
 * without hooks. The reports have the code and the buffer of the hooks. */
#ifndef MAPSYNC_BENCH_REPORT_H
#define MAPSYNC_BENCH_REPORT_H

#ifdef LB_REPORTS
#define RING_ONLY
#include "../../../bpf/event.h"

volatile const __u32 ct_map_id = 0;

static __always_inline void report(enum op op, const void *key, const void *value)
{
	struct watch *w = watch_of(ct_map_id);
	struct slot *s, *base;
	__u32 level;

	if (!w)
		return;
	s = enter(KIND_INJECTED, &base, &level);
	if (!s)
		return;
	s->seen++;
	emit(NULL, s, KIND_INJECTED * LEVELS + level, ct_map_id, w, op, CTX_PACKET, key, value);
	leave(base);
}

static __always_inline void report_update(const void *key, const void *value)
{
	report(OP_UPDATE, key, value);
}

static __always_inline void report_delete(const void *key)
{
	report(OP_DELETE, key, NULL);
}
#else
static __always_inline void report_update(const void *key, const void *value)
{
}

static __always_inline void report_delete(const void *key)
{
}
#endif

#endif
