// Package bpf holds the BPF program of the accountant and its generated loaders. The objects are
// committed, so that a build does not need clang.
package bpf

//go:generate go tool -modfile=../../../../tools/go.mod bpf2go -cc clang-14 -strip llvm-strip-14 -target amd64,arm64 -tags linux -type service_key -type service_value -type missed Accounting accounting.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -I/usr/include/x86_64-linux-gnu
