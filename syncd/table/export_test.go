package table

// Internals reads and compacts tables for package tabletest, beyond the exported methods of Table. Its
// methods take no lock: the caller may call them inside of Update.
type Internals struct{}

// TimestampMargin is timestampMargin.
const TimestampMargin = timestampMargin

// New returns a table. It uses the memory of old, a table of the same sizes that the caller discards, unless
// old is nil. The log of the table has small chunks, so that it allocates and frees chunks often.
func (Internals) New(o Options, old *Table) (t *Table, err error) {
	if old != nil {
		t = reuseTable(old, o)
	} else if t, err = New(o); err != nil {
		return nil, err
	}
	t.log.shift = 1
	return t, nil
}

// InRound reports whether a delete that begins to wait at the wall clock now belongs to the round of one that waits. Entries
// that came after the beginning of that round do not count for a clear.
func (Internals) InRound(t *Table, now int64) bool {
	x := &t.clears
	return x.queue.len() > 0 && now-x.joins.beganAt < roundTime
}

// HoldSmallClears sets the lowest number of entries of a clear.
func (Internals) HoldSmallClears(t *Table, entries int) { t.clears.least = entries }

// Stats returns the gauges and counters of a table without the positions and the memory. The table updates
// the result with each change.
func (Internals) Stats(t *Table) *Stats { return &t.stats }

// Check checks the invariants of a table that hold between any two calls.
func (Internals) Check(tb interface {
	Helper()
	Fatalf(format string, args ...any)
}, t *Table,
) {
	checkInvariants(tb, t)
}

// Uncertain returns whether the kernel map decides about the content of a record, and the time of the last
// event or read that showed the record, in nanoseconds.
func (Internals) Uncertain(t *Table, key []byte) (seen int64, uncertain bool) {
	m, known := t.metaOf(key)
	return m.seen, known && m.is(flagUncertain)
}

// Evicted reports whether a table treats a key as evicted by the kernel map.
func (Internals) Evicted(t *Table, key []byte) bool {
	m, known := t.metaOf(key)
	return known && m.is(flagEvicted)
}

// UsedByPeer reports whether a live peer has superseded the record of a key.
func (Internals) UsedByPeer(t *Table, key []byte) bool {
	_, s := t.find(key)
	return s != 0 && t.usedByPeer(s)
}

// Restores reports whether the adoption of an entry restores the record of the last clean stop.
func (Internals) Restores(t *Table, key []byte) bool {
	_, s := t.find(key)
	if s == 0 || !t.meta(s).is(flagUnversioned) || !t.meta(s).live() {
		return false
	}
	v, _ := t.foundVersion(s)
	return t.isRestored(v)
}

// Released returns the value of a released key, nil if the key is not released.
func (Internals) Released(t *Table, key []byte) []byte {
	m, known := t.metaOf(key)
	if !known || !m.is(flagReleased) {
		return nil
	}
	_, s := t.find(key)
	return t.value(s)
}

// CPU returns the CPU of the last event of a key that is in a slot.
func (Internals) CPU(t *Table, key []byte) (cpu uint16, known bool) {
	m, known := t.metaOf(key)
	return m.lastCPU(), known
}

// metaOf returns the meta of a key, false if the key is in no slot.
func (t *Table) metaOf(key []byte) (m *meta, known bool) {
	_, s := t.find(key)
	return t.meta(s), s != 0
}

// Rereads returns the number of keys in the queues of rereads.
func (Internals) Rereads(t *Table) int {
	return t.rereads.len() + t.unknownRereads.waiting()/t.opt.KeySize
}

// OwnerIDs returns the lowest id that no owner has had so far.
func (Internals) OwnerIDs(t *Table) OwnerID { return OwnerID(len(t.owners.list)) }

// VersionAt returns the version of a local change at a time.
func (Internals) VersionAt(t *Table, now int64) Version { return t.versionAt(now) }

// Compact compacts all tombstones of a table that are settled, as if enough time had passed since now.
// It returns the number of tombstones that it compacted.
func (Internals) Compact(t *Table, now int64) int {
	was := t.log.n
	t.Update(func(*Tx) {
		for t.compact(now+compactAfter, 2) {
		}
	})
	return t.log.n - was
}

// Compacts reports whether Compact would change any tombstone.
func (Internals) Compacts(t *Table, now int64) bool {
	for s := t.meta(order).next; s != order; s = t.meta(s).next {
		if m := t.meta(s); !m.live() && !m.is(flagInTombs) {
			settled := m.seq <= t.applied && !m.is(flagDirty|flagReread|flagUncertain|flagReleased)
			return !t.tooRecent(m, now+compactAfter, settled)
		}
	}
	return false
}

// Compacted returns the number of compact tombstones.
func (Internals) Compacted(t *Table) int { return t.log.n }
