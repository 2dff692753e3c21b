//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The load balancer's next release, for clusters in the middle of an upgrade: the
 * same program with another layout of its connection-tracking entries. */
#define CT_NEXT
#include "lb.bpf.c"
