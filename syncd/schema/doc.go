// Package schema describes the bytes of a map's entries. It reads the types of keys and values from
// BTF. It converts struct bytes to protobuf wire format and back, with a plan that is compiled once
// per map. It compares the layouts of two nodes. Package [mapsync/syncd/schema/export] writes
// schemas and entries in formats for people and for other programs.
//
// # From C to protobuf
//
// A struct becomes a message, and each of its named members becomes a field. The field number is
// the position of the member in the order of declaration. The members of an anonymous struct count
// as members of the outer struct. Field numbers therefore depend on the type alone, and appended
// members do not change the numbers of other members. The decl tag "mapsync:number=N" pins a
// number.
//
//	C                                      protobuf
//	unsigned integers, also bitfields      uint32, uint64
//	signed integers, also bitfields        sint32, sint64
//	bool                                   bool
//	enum                                   an enum
//	float, double                          float, double
//	arrays of bytes, 128-bit integers      bytes
//	other arrays, of any dimensions        repeated, flat
//	struct                                 a message
//	union                                  the member that covers all others, else bytes
//	pointers                               not sent: only valid on one node
//	bpf_spin_lock, bpf_timer, ...          not sent: owned by the kernel
//	padding                                not sent
//
// # Canonical
//
// Equal content always has equal wire bytes: fields are in the order of their numbers, zero fields
// are left out, numbers have their shortest form, and arrays and bytes end with their last element
// that is not zero. The decoder accepts only this form, and checks every bound. The encoding drops
// padding. The encoder therefore refuses a key whose padding is not zero, because two such keys
// could become equal.
//
// # Time
//
// A time stamp is sent as the wall clock of the sending node: Unix time in nanoseconds. [Times]
// converts it from and to the kernel's clocks.
package schema
