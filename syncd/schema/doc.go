// Package schema knows what the bytes of a map's entries mean. It reads the
// types of keys and values from BTF, turns struct bytes into protobuf wire format
// and back by a plan that is compiled once for a map, compares the layouts of two nodes, and
// writes a layout down as a .proto file and as text for people.
//
// # From C to protobuf
//
// A struct becomes a message, and each of its named members a field, whose
// number is the member's place in the order of declaration; the members of an anonymous
// struct count as the outer struct's. So numbers follow from the type alone, and members
// that are appended change no other's. The decl tag "mapsync:number=N" pins one.
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
//	union                                  its member that covers all others', else bytes
//	pointers                               not sent: they are local by nature
//	bpf_spin_lock, bpf_timer, ...          not sent: the kernel owns them
//	padding                                not sent
//
// # Canonical
//
// The same content always gives the same bytes: fields come in the order of their
// numbers, zero fields are left out, numbers are as short as they can be, and arrays
// (bytes too) end with their last element that is not zero. Decoding accepts only
// that, and checks every bound. Bytes of padding are lost; a key whose padding
// is not zero is therefore refused, because two such keys could become one.
//
// # Time
//
// A time stamp travels as wall clock of the node that sends it, Unix time in
// nanoseconds, and is converted from and to the kernel's clocks by [Times].
package schema
