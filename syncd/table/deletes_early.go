package table

// earlyDeletes is a cache of recent deletes of keys without a record, or with a tombstone. If two CPUs create and delete a key
// at the same moment, the event of the delete may arrive first. A tombstone for each such delete would let
// an attacker fill the table with deletes of absent keys. The table therefore keeps a small cache, which it
// creates at the first such delete. If the cache drops an entry too early, the scan finds the difference.
// The lock of the table protects the cache.
type earlyDeletes []earlyDelete

// earlyDelete is the latest delete in one place of the cache. The zero value is an empty place.
type earlyDelete struct {
	// time is the wall clock in nanoseconds of the delete.
	time int64
	// hash is the index hash of the key.
	hash uint32
	// cpu is the CPU of the event. cpuNone: it has none, or CPUs deleted the key at about the same time.
	cpu uint16
	// packet is true if the data plane made the delete.
	packet bool
}

// earlyDeleteBits is the binary logarithm of the number of places. The upper bits of the hash select one.
const earlyDeleteBits = 9

// note stores a delete. If two keys share a place, the later delete stays.
func (x *earlyDeletes) note(hash uint32, at int64, cpu uint16, packet bool) {
	if *x == nil {
		*x = make(earlyDeletes, 1<<earlyDeleteBits)
	}
	e := &(*x)[hash>>(32-earlyDeleteBits)]
	switch {
	// The times do not show which of the deletes was the last one.
	case e.hash == hash && e.cpu != cpu && max(at-e.time, e.time-at) <= timestampMargin:
		e.time, e.cpu, e.packet = max(e.time, at), cpuNone, e.packet && packet
	case at >= e.time:
		*e = earlyDelete{at, hash, cpu, packet}
	}
}

// match reports whether a key that appears with change c was deleted at about the same moment on another
// CPU, or after it was read, and whether the data plane made that delete.
func (x earlyDeletes) match(hash uint32, c *Change) (deleted, packet bool) {
	if x == nil {
		return false, false
	}
	e := &x[hash>>(32-earlyDeleteBits)]
	other := e.cpu != c.CPU || c.Context == ContextReread
	return e.hash == hash && other && c.Time-e.time <= timestampMargin, e.packet
}

// bytes returns the memory of the cache in bytes.
func (x earlyDeletes) bytes() uint64 { return uint64(cap(x)) * 16 }
