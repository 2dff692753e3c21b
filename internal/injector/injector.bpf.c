//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A data plane of a load balancer for kernels without hooks. It writes a map and reports the change
 * with the same code as the hooks. Only tests and benchmarks load it. It shares the maps of a
 * capture.
 */
#define RING_ONLY
#include "inject.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* inject makes count changes, starting with change number first. It sets failed to the number of
 * changes that the map refused. */
SEC("syscall")
int inject(struct inject_args *args)
{
	struct run run = { .args = *args };

	run.args.failed = 0;
	bpf_loop(run.args.count, inject_one, &run, 0);
	args->failed = run.args.failed;
	return 0;
}
