// Package export writes schemas and entries in formats for people and for other programs: a schema
// as a .proto file or as a table, and entries as text or as JSON.
package export
