//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A data plane for tests: a socket filter that makes a list of writes to a map.
 * BPF_PROG_TEST_RUN makes them in process context. Packets that reach the socket
 * make them in a soft interrupt. The program does not depend on the hooks.
 */
#include "writes.h"

SEC("socket")
int make_writes(struct __sk_buff *skb)
{
	return make_run(); /* drop the packet */
}
