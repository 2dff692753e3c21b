// Package replicate carries the changes of tables between nodes.
//
// # Streams
//
// Each node subscribes to each of its peers: one gRPC stream a pair of nodes and
// direction, which carries all maps in turn. The receiver says from where it
// goes on; the sender walks the order of its table from there to the end and
// then waits for what is next. Catching up, resuming and a first sync are that
// same walk. A walk that cannot resume (the sender is a new process, or has
// forgotten deletions since) begins at 0 and is marked as a reset.
//
// # Who streams what
//
// A record is streamed by its owner. When the owner is gone, the designated
// survivor streams it, which is the live node that started first, and which
// is told by all others what they have: when a node dies, each of them may have
// received something that no other has. For the same reason a node that starts
// anew is told by everyone what its earlier lives owned. Each time a node
// becomes responsible for another's records it moves them to the tail of its
// tables, so that streams that passed them while they were another's business
// meet them again.
//
// A table with unversioned records streams nothing: until they are claimed,
// this node does not know what is its own. Load a map before AddMap.
//
// Whoever may connect may also observe: it is told everything, by as many nodes as
// it asks, holds nothing and counts for nothing.
//
// # What bytes mean
//
// The sender encodes keys and values by its own schema. Both sides tell theirs when a
// map is subscribed to, and the receiver compiles a decoder from the one to the
// other; what cannot be brought together is refused by both, with the names of the fields.
// Time stamps are on the wire as the sender's wall clock. The receiver measures
// how far that is from its own before it subscribes to anything, and from time to time
// after, so that neither wall clocks nor boot times need agree.
//
// # Proof
//
// A sender at its end says what it holds, as digests, and a receiver compares that with
// its own at the same place in the stream. What differs and stays is told again: compare.go.
//
// # The hot path
//
// A batch is encoded straight from the table's records into a pooled buffer
// that gRPC sends as it is, and on the other side decoded entry by entry in one
// Update of the table. Nothing is allocated per delta. On the wire it is plain
// protobuf: any stock client or server of mapsync.v1 interoperates.
//
// # Slow and lying peers
//
// A stream that does not move blocks its own goroutine and nothing else; what it
// has not seen stays in the table, which is there anyway. A message that does
// not parse, leaves a gap or does not fit the layout is an error of that map or
// stream: it is counted, shown by Status, and tried again later from the last
// good position. A single record that the table refuses, or that this node's
// types cannot hold, is set aside, and the map walked again later.
package replicate
