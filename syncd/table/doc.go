// Package table holds the replicated content of one kernel map: the newest record of each key, its owner,
// and the order in which records changed.
//
// A Table does no I/O, starts no goroutine and reads no clock. Callers pass times in as wall clock
// nanoseconds.
//
// # The table is the log
//
// The records are ordered by their last change. Each key has one record. A change moves its record to the
// tail and gives it a new position. A reader that follows the order from any position to the tail therefore
// reads all later changes. The outbound stream of a peer is a Cursor on that order. The kernel writer is
// another Cursor, which looks only at dirty records. A slow reader therefore costs no more memory than its
// cursor.
//
// # Versions and owners
//
// The version of a record is a hybrid logical clock: the wall time of the change plus a skew. The skew
// grows to the largest lead of a received version over the local clock, up to a limit. It shrinks when no
// version confirms it. The higher (version, owner) wins on every node. Merging the same record twice
// modifies nothing. Version 0 marks a record that was read from the map at start and that the node has not
// adopted yet. Such a record is not in the order.
//
// # Content of the kernel map
//
// A record that is not dirty equals the kernel map's entry, as far as the table has evidence. The writer
// has yet to write a dirty record. The events of concurrent writers do not show which write the map applied
// last. Where the order matters, the table requests a reread, and the content of the map decides.
//
// # Digests
//
// For each node the table keeps a digest of the records that the node owns. Peers compare it with the
// digest in their tables: see Tx.Digest.
//
// # Memory
//
// Records are stored in slabs without pointers and refer to each other by slot number. A record costs its
// key, its value, 40 bytes, and 11 to 22 bytes of index. Settled tombstones move to a log, where each costs
// its key and 22 to 24 bytes: see tombstones_compact.go. The table reuses slots and never returns their memory. The
// log returns unused memory.
package table
