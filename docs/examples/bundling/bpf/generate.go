// Package bpf holds the tracer's BPF programs, compiled, and the generated loaders. The object is committed, so that a
// build does not need clang.
package bpf

//go:generate go tool -modfile=../../../../tools/go.mod bpf2go -cc clang-14 -strip llvm-strip-14 -target amd64,arm64 -tags linux -type flow_key -type flow -type listener Tracer tracer.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -I/usr/include/x86_64-linux-gnu
