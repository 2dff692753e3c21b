// Package conntrackpb is protoc-generated code of a conntrack entry: what the
// benchmarks compare the codec of package schema with.
package conntrackpb

//go:generate go tool -modfile=../../tools/go.mod buf generate
