package schema

// The layouts of the tests are committed in compiled form, so the tests need no clang. They are
// compiled with clang 14, like the programs in mapsync/bpf, and stripped of directory names.
//go:generate clang-14 -g -O2 -Wall -Werror -target bpf -mcpu=v2 -fdebug-compilation-dir=. -I/usr/include/x86_64-linux-gnu -c testdata/layouts.bpf.c -o testdata/layouts.o
//go:generate llvm-strip-14 -g testdata/layouts.o
