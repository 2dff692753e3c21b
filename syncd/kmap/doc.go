// Package kmap finds and follows kernel hash maps, and is the only one that reads
// and writes them.
//
// A map is read by a BPF iterator and written by a BPF program that
// BPF_PROG_TEST_RUN runs over entries in shared memory. That is faster than bpf(2),
// and above all it leaves the hooks in peace: while a thread is inside a bpf(2)
// map call, its CPU skips kprobe programs, so that bulk traffic by bpf(2) would
// hide the data plane's writes. bpf(2) is left for maps that no program can
// write; which way a map takes is decided by [Open] and told by [Map.Method].
//
// A [Syncer] keeps a map as its table says, and a [Scanner] finds what the map says and no
// hook saw.
//
// The value of an entry of a per-CPU map is that of all possible CPUs, each padded to
// 8 bytes, as bpf(2) has it. A program writes only its own CPU's and, before 5.19,
// reads only that; an iterator gives all.
package kmap
