// Package bpf contains the compiled BPF programs and their generated loaders.
//
// The objects are committed, so a build needs no clang. They are compiled with clang 14, which
// Debian 12 and Ubuntu 22.04 and 24.04 all package. Regenerating them with clang 14 changes
// nothing.
package bpf

//go:generate go tool -modfile=../tools/go.mod bpf2go -cc clang-14 -strip llvm-strip-14 -target amd64,arm64 -tags linux Capture capture.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -I/usr/include/x86_64-linux-gnu
