// Package drained keeps sums of the entries that a collector drains from a kernel map: that it removes by
// lookup-and-delete of bpf(2), single or in batches, as collectors of flows do.
//
// A BPF program at the end of such a call (bpf/drain.bpf.c) adds the values that the call has returned to a map of
// sums. Programs and sums are pinned, so that they survive a restart of syncd. Each map of sums has a random origin,
// which ends all its keys. The sums of several nodes, and of several boots of one node, are therefore different entries
// of one replicated map.
package drained
