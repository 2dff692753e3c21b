// Package proto generates the wire contract from its .proto files; the
// generated code is in mapsync/v1.
package proto

//go:generate go tool -modfile=../tools/go.mod buf lint
//go:generate go tool -modfile=../tools/go.mod buf generate
