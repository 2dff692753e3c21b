//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The injector as a program that processes packets. Unlike a program of type syscall, it can send
 * events to a perf buffer. Each packet is a struct inject_args.
 */
#include "inject.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("xdp")
int inject(struct xdp_md *ctx)
{
	struct inject_args *args = (void *)(long)ctx->data;
	struct run run = {};

	if ((void *)(args + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	run.args = *args;
	run.ctx = ctx;
	bpf_loop(run.args.count, inject_one, &run, 0);
	args = (void *)(long)ctx->data;
	if ((void *)(args + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	args->failed = run.args.failed;
	return XDP_PASS;
}
