package table

// internals reads and compacts tables beyond the exported methods of a Table. The tests of package table
// implement it. Its methods take no lock: the caller may call them inside of Update.
type internals interface {
	// New returns a table with small chunks of compact tombstones. It uses the memory of a table of the same
	// sizes that is no longer used, nil if there is none.
	New(o Options, old *Table) (*Table, error)
	// Check reports violated invariants of a table.
	Check(tb checker, t *Table)
	// Uncertain returns whether the kernel map decides about the content of a record, and the time of the
	// last event or read that showed the record, in nanoseconds.
	Uncertain(t *Table, key []byte) (seen int64, uncertain bool)
	// Evicted reports whether a table treats a key as evicted by the kernel map.
	Evicted(t *Table, key []byte) bool
	// Released returns the value of a released key, nil if the key is not released.
	Released(t *Table, key []byte) []byte
	// CPU returns the CPU of the last event of a key. known is false if the table has no record of the key,
	// or only a compact tombstone.
	CPU(t *Table, key []byte) (cpu uint16, known bool)
	// Rereads returns the number of keys in the queues of rereads.
	Rereads(t *Table) int
	// OwnerIDs returns the lowest id that no owner has had so far.
	OwnerIDs(t *Table) OwnerID
	// VersionAt returns the version of a local change at a time.
	VersionAt(t *Table, now int64) Version
	// Compact moves the compaction cursor of a table as far as possible, as if enough time had passed since
	// now. It returns the number of tombstones that it compacted. It takes the lock of the table.
	Compact(t *Table, now int64) int
	// Compacts reports whether Compact would change any tombstone.
	Compacts(t *Table, now int64) bool
	// Compacted returns the number of compact tombstones.
	Compacted(t *Table) int
	// Encode encodes the part of a table that influences later calls. If cpus is set, this includes the CPUs
	// of events.
	Encode(t *Table, x encoder, cpus bool)
	// EncodeReading encodes the part of a reading that influences later calls.
	EncodeReading(t *Table, r *Reading, x encoder)
}

// checker receives violated invariants. Fatalf does not return.
type checker = interface {
	Helper()
	Fatalf(format string, args ...any)
}

func (d *simDaemon) internals() internals { return d.n.sim.tables.internals }
