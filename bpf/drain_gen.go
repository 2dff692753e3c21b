package bpf

import "hash/fnv"

//go:generate go tool -modfile=../tools/go.mod bpf2go -cc clang-14 -strip llvm-strip-14 -target amd64,arm64 -tags linux Drain drain.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -I/usr/include/x86_64-linux-gnu

// DrainVersion identifies the programs in drain.bpf.c.
func DrainVersion() uint64 {
	h := fnv.New64a()
	h.Write(_DrainBytes)
	return h.Sum64()
}
