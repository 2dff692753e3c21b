// Package bpf holds the offload of the TURN server: the BPF program and its maps, and the generated
// loader. The object is committed, so that a build does not need clang.
package bpf

//go:generate go tool -modfile=../../../../tools/go.mod bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux -type turn_flow -type turn_channel -type turn_counters -type turn_allocation -type turn_permission_key -type turn_permission Turn turn.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -I/usr/include/x86_64-linux-gnu
