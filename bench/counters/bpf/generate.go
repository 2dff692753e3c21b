// Package bpf holds the layer 2 program that is the control of the throughput measurement, and its generated loader. The
// object is committed, so that a build does not need clang.
package bpf

//go:generate go tool -modfile=../../../tools/go.mod bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux Layer2 layer2.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -I/usr/include/x86_64-linux-gnu
