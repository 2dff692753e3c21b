// Package conntrackpb is protoc-generated code of a conntrack entry: what the
// benchmarks of package schema compare its codec with. Nothing but tests imports it.
package conntrackpb

//go:generate go tool -modfile=../../../../tools/go.mod buf generate
