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
// per map: orphaned records from its fallback sender (fallback_sender.go), and the records of a live
// peer that it does not reach from a third node (relays.go). The sender stores which owners it has
// covered up to the position of the stream (outbound_deliveries.go). It sends out of turn what a new
// request or a departure adds (sent_owners.go, outbound_owners.go). A permit determines whose records
// a peer may send (accept_permit.go). Every peer sends a restarted node the records that the earlier
// incarnations of the node owned.
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
// with its own digests at the same position of the stream. Persistent differences are resent:
// compare.go.
//
// # Hot path
//
// Package wire encodes a batch from the table's records into a pooled buffer that gRPC sends without a
// copy. The receiver decodes it entry by entry in one Update of its table. No memory is allocated per
// delta. The wire format is plain protobuf: any stock client or server of mapsync.v1 interoperates.
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
