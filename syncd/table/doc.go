// Package table holds the replicated content of one kernel map: for each key
// its newest record, who wrote it, and the order in which records changed.
//
// The table is pure. It does no I/O, starts no goroutine and has no clock;
// times are passed in as wall clock nanoseconds.
//
// # The table is the log
//
// Records stand in the order of their last change, each key once. A change
// moves its record to the tail and gives it a new position, so a reader that
// follows the order from any position to the tail has seen everything that
// changed since. A peer's stream is a Cursor on that order, and so is the
// kernel writer, which looks only at dirty records. A slow reader therefore
// costs nothing but its cursor.
//
// # Versions and owners
//
// A record's version is a hybrid logical clock: the wall time of the change
// plus a skew that grows to the furthest ahead that a peer's version has been
// seen, up to a limit, and shrinks when no version confirms it. The higher (version, owner) wins on every node, and merging the same
// record twice changes nothing. Version 0 marks a record that was read from the
// map at start and that no one has claimed yet; it is not in the order.
//
// # What the kernel holds
//
// A record that is not dirty is what the kernel map holds, as far as is known.
// A dirty record is still to be written. Events of concurrent writers do not
// tell which write the map took last; where that matters the table asks for a
// recheck, and the content then read from the map decides.
//
// # Digests
//
// For each node the table keeps a digest of the records that the node owns, which
// compares with that of another table: see Tx.Digest.
//
// # Memory
//
// Records live in slabs without pointers and name each other by slot number.
// A record costs its key, its value, 40 bytes, and 11 to 22 bytes of index. Settled tombstones
// move to a log, where each costs its key and 22 to 24 bytes: see compact.go. Slots are used again
// and never returned; the log returns what it does not need.
package table
