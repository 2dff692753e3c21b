// Package kmap finds and follows kernel hash maps. No other package reads or writes them.
//
// BPF programs read and write a map: BPF_PROG_TEST_RUN runs a program over entries in shared
// memory. This is faster than bpf(2). More importantly, it does not suppress the hooks. While a thread is inside a bpf(2) map call, its CPU skips kprobe programs. Bulk traffic by
// bpf(2) would therefore hide the data plane's writes. bpf(2) is the fallback for maps that
// programs cannot write. [Open] selects the access methods of a map, and [Map.AccessMethods]
// returns them.
//
// A [Syncer] writes the records of a table to its map. A [Scanner] finds changes of the map that no
// hook reported.
//
// The value of an entry of a per-CPU map consists of the values of all possible CPUs, each padded
// to 8 bytes, as in bpf(2). A program writes only the value of its own CPU, and a lookup by
// bpf(2) returns all of them.
package kmap
