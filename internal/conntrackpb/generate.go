// Package conntrackpb is the protoc-generated code of a conntrack entry. Benchmarks compare the codec
// of package schema with it.
package conntrackpb

//go:generate go tool -modfile=../../tools/go.mod buf generate
