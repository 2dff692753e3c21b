// Package bpf holds the load balancer's BPF program, compiled for each layout of its
// connection-tracking entries, and the generated loaders. The objects are committed, so that a
// build does not need clang.
package bpf

//go:generate go tool -modfile=../../../tools/go.mod bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux -type ct_key -type ct_nat -type ct_tcp -type ct_value -type vip_key -type vip_value -type backend LB lb.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -I/usr/include/x86_64-linux-gnu
//go:generate go tool -modfile=../../../tools/go.mod bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux -no-global-types -type ct_nat -type ct_tcp -type ct_value LBNext lb_next.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -I/usr/include/x86_64-linux-gnu
//go:generate go tool -modfile=../../../tools/go.mod bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -tags linux -no-global-types LBReports lb_reports.bpf.c -- -O2 -g -Wall -Werror -mcpu=v2 -I/usr/include/x86_64-linux-gnu
