package main

// The .proto file is what `syncd schema export` makes of the load balancer's map; the
// code is made of that file alone.
//go:generate go run mapsync/syncd schema export ../../../bench/lb/bpf/lb_bpfel.o --map ct_map --output ctmap/ct_map.proto
//go:generate go tool -modfile=../../../tools/go.mod buf generate
