package injector

//go:generate go tool -modfile=../../tools/go.mod bpf2go -cc clang-14 -strip llvm-strip-14 -target amd64,arm64 -tags linux injector injector.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -I/usr/include/x86_64-linux-gnu
//go:generate go tool -modfile=../../tools/go.mod bpf2go -cc clang-14 -strip llvm-strip-14 -target amd64,arm64 -tags linux packets packets.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -I/usr/include/x86_64-linux-gnu
