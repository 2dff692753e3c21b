// Package replicate replicates the changes of tables between nodes.
//
// # Streams
//
// Each node subscribes to each of its peers. There is one gRPC stream for each pair of nodes and
// each direction, which carries all maps in turn. The receiver sends the position from which it
// continues. The sender sends the records of its table in order from that position to the end, and
// then waits for new changes. Full sync, resume and catching up are the same operation. If the
// sender cannot resume (it is a new process, or has forgotten deletes since), the stream begins at
// position 0 and is marked as a reset.
//
// # Senders of a record
//
// The owner of a record sends it. The receiver requests the records of other owners from a peer,
// per map: orphaned records from its fallback sender, and the records of a live peer that it does
// not reach from a third node (roles.go). The sender stores which owners it has covered up to the
// position of the stream. It sends out of turn what a new request or a departure adds (coverage.go,
// outbound_owners.go). A permit determines whose records a peer may send (permit.go). Every peer
// sends a restarted node the records that the earlier incarnations of the node owned.
//
// A table with unversioned records is not streamed: until they are adopted, this node cannot
// determine which records are its own. Load a map before AddMap.
//
// A caller with the observer role may observe. An observer receives all records, from as many nodes
// as it asks. It holds no records of the cluster, and no node waits for it.
//
// # Encoding
//
// The sender encodes keys and values by its own schema. Both sides send their schema when a map is
// subscribed to. The receiver compiles a decoder from the sender's schema to its own. Both sides
// refuse schemas that are incompatible, with the names of the fields. Time stamps are sent as the wall
// clock of the sender. The receiver measures the offset between both clocks before it subscribes to a
// map, and periodically afterwards. So neither wall clocks nor boot times need to agree.
//
// # Anti-entropy
//
// A sender that has nothing left to send sends digests of what it holds. The receiver compares them
// with its own digests at the same position of the stream. Persistent differences are sent again:
// compare.go.
//
// # Hot path
//
// Package wire encodes a batch from the table's records into a pooled buffer that gRPC sends without a
// copy. The receiver decodes it entry by entry in one Update of its table. No memory is allocated per
// delta. The wire format is plain protobuf: any stock client or server of mapsync.v1 interoperates.
//
// # Locks
//
// A goroutine takes these locks in this order only, and may omit any of them:
//
//  1. nodeVerifier.mu
//  2. Replicator.mu
//  3. inboundStream.mu
//  4. localMap.mu
//  5. the lock of a table (table.Update, View, NewCursor and Cursor.Close)
//  6. deliveries.mu and exceptions.mu, one at a time
//
// outboundStream.mu comes before localMap.mu and is never held together with Replicator.mu or
// inboundStream.mu. An outbound stream that needs the replicator calls it after it has released its
// own lock (subscribe). The replicator collects the outbound streams under its lock and calls them
// afterwards (Resync, Status). Apart from these locks, code that holds the lock of a table reads
// only atomic values: a view, the state of an outbound map stream.
//
// # Slow and malicious peers
//
// A stream that does not progress blocks its own goroutine and nothing else. The records that it
// has not sent stay in the table, where they are in any case. A message that does not parse, leaves
// a gap or does not fit the layout is an error of that map or stream. Such an error is counted and
// shown by Status, and the map is retried later from the last good position. A single record that
// the table refuses, or that this node's types cannot hold, is set aside, and a full sync of the
// map is repeated later.
package replicate
