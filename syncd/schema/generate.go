package schema

// The layouts of the tests are committed compiled, so that testing needs no clang; with
// clang 14, as the programs in mapsync/bpf. Stripped of what names directories.
//go:generate clang-14 -g -O2 -Wall -Werror -target bpf -mcpu=v2 -fdebug-compilation-dir=. -I/usr/include/x86_64-linux-gnu -c testdata/layouts.bpf.c -o testdata/layouts.o
//go:generate llvm-strip-14 -g testdata/layouts.o
