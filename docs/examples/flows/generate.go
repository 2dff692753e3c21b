package main

// `syncd schema export` generates the .proto file from the load balancer's map. The code is
// generated from that file only.
//go:generate go run mapsync/syncd schema export ../../../bench/lb/bpf/lb_bpfel.o --map ct_map --output ctmap/ct_map.proto
//go:generate go tool -modfile=../../../tools/go.mod buf generate
