package main

// The code of the feed is generated from the types of the tracer's flows, with the settings of syncd.
//go:generate go run mapsync/syncd schema export bpf/tracer_x86_bpfel.o --map flows --config syncd.yaml --output flowpb/flows.proto
//go:generate go tool -modfile=../../../tools/go.mod buf generate
