//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The load balancer that reports its writes itself. */
#define LB_REPORTS
#include "lb.bpf.c"
