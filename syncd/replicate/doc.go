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
// # Who sends what
//
// A record is sent by its owner. Which other owners' records a peer sends, the receiver
// requests, per map: orphaned records of its fallback sender, and those of a live peer that
// it does not reach of a third node (roles.go). The sender keeps which owners it has
// covered up to the position of the stream, and sends out of turn what a new request or a
// departure adds (coverage.go, requested.go). permit.go says whose records a peer may send.
// A node that starts anew is sent by every peer what its earlier incarnations owned.
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
// # Locks
//
// A goroutine takes these locks in this order only, and may leave any of them out:
//
//  1. Replicator.mu
//  2. link.mu
//  3. localMap.mu
//  4. the lock of a table (table.Update, View, NewCursor and Cursor.Close)
//  5. memory.mu
//
// session.mu stands before localMap.mu and is never held together with Replicator.mu or
// link.mu. A session that needs the replicator calls it after it has released its own
// lock (subscribe), and the replicator collects the sessions under its lock and calls
// them afterwards (Resync, Status). Under the lock of a table only atomic values are read:
// a view, a feed's state.
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
