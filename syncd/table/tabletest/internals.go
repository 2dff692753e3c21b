package tabletest

import "mapsync/syncd/table"

// Internals reads and compacts tables beyond the exported methods of a Table. The tests of package table
// implement it. Its methods take no lock: the caller may call them inside of Update.
type Internals interface {
	// New returns a table with small chunks of compact tombstones. It uses the memory of old, a table of the
	// same sizes that the caller discards, unless old is nil.
	New(o table.Options, old *table.Table) (*table.Table, error)
	// InRound reports whether a delete at the wall clock now belongs to the round of one that waits.
	InRound(t *table.Table, now int64) bool
	// HoldSmallClears sets the lowest number of entries of a clear.
	HoldSmallClears(t *table.Table, entries int)
	// Stats returns the gauges and counters of a table without the positions and the memory. The table
	// updates the result with each change.
	Stats(t *table.Table) *table.Stats
	// Check reports violated invariants of a table.
	Check(tb Checker, t *table.Table)
	// Uncertain returns whether the kernel map decides about the content of a record, and the time of the
	// last event or read that showed the record, in nanoseconds.
	Uncertain(t *table.Table, key []byte) (seen int64, uncertain bool)
	// Evicted reports whether a table treats a key as evicted by the kernel map.
	Evicted(t *table.Table, key []byte) bool
	// UsedByPeer reports whether a live peer has superseded the record of a key.
	UsedByPeer(t *table.Table, key []byte) bool
	// Restores reports whether the adoption of an entry restores the record of the last clean stop.
	Restores(t *table.Table, key []byte) bool
	// Released returns the value of a released key, nil if the key is not released.
	Released(t *table.Table, key []byte) []byte
	// CPU returns the CPU of the last event of a key. known is false if the table has no record of the key,
	// or only a compact tombstone.
	CPU(t *table.Table, key []byte) (cpu uint16, known bool)
	// Rereads returns the number of keys in the queues of rereads.
	Rereads(t *table.Table) int
	// OwnerIDs returns the lowest id that no owner has had so far.
	OwnerIDs(t *table.Table) table.OwnerID
	// VersionAt returns the version of a local change at a time.
	VersionAt(t *table.Table, now int64) table.Version
	// Compact compacts all tombstones of a table that are settled, as if enough time had passed since
	// now. It returns the number of tombstones that it compacted. It takes the lock of the table.
	Compact(t *table.Table, now int64) int
	// Compacts reports whether Compact would change any tombstone.
	Compacts(t *table.Table, now int64) bool
	// Compacted returns the number of compact tombstones.
	Compacted(t *table.Table) int
	// Encode encodes the part of a table that influences later calls. If cpus is set, this includes the CPUs
	// of events.
	Encode(t *table.Table, x Encoder, cpus bool)
	// EncodeReading encodes the part of a reading that influences later calls.
	EncodeReading(t *table.Table, r *table.Reading, x Encoder)
}

// Encoder receives the state of a table: numbers, flags, versions that the table may compare with later
// ones, times in nanoseconds, positions, owners and values.
type Encoder = interface {
	Int(v int)
	Bool(all ...bool)
	Version(v table.Version)
	Time(at int64)
	Position(p uint64)
	Owner(o table.Owner)
	Value(v []byte)
}

// Checker receives violated invariants. Fatalf does not return.
type Checker = interface {
	Helper()
	Fatalf(format string, args ...any)
}

// internals returns the access to tables beyond their exported methods.
func (d *Daemon) internals() Internals { return d.n.world.tables.internals }
