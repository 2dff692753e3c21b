package table

// loadDeletes is the highest number of keys in loading.deleted. If more keys are deleted during a load,
// every loaded key is reread.
const loadDeletes = 1 << 16

// loading has the keys without a record that were deleted while the initial content was being read. The
// reader may have read such a key before its delete. The lock of the table protects it.
type loading struct {
	// deleted has the wall clock in nanoseconds of each delete by the data plane, deletedByCall for deletes by bpf(2), and 0 for
	// other deletes. It has at most loadDeletes keys.
	deleted map[string]int64
	// overflow is true if a delete did not fit into deleted.
	overflow bool
}

// deletedByCall is the element of loading.deleted for a delete by bpf(2).
const deletedByCall = -1

// noteDelete stores a delete of a key without a record.
func (l *loading) noteDelete(c *Change) {
	if len(l.deleted) == loadDeletes {
		l.overflow = true
		return
	}
	at := int64(0)
	switch {
	case c.Context < ContextSyscall:
		at = c.Time
	case c.Context == ContextSyscall:
		at = deletedByCall
	}
	if at != 0 || l.deleted[string(c.Key)] == 0 {
		l.deleted[string(c.Key)] = at
	}
}

// deletedDuringLoad returns deleted, the element of a key, or 0. uncertain is true if
// the key was deleted, or if the list of deletes overflowed.
func (l *loading) deletedDuringLoad(key []byte) (deleted int64, uncertain bool) {
	deleted, listed := l.deleted[string(key)]
	return deleted, listed || l.overflow
}

// BeginLoad starts a load. The caller calls it after the hooks are attached and before it reads the map.
// From then on the table stores deletes of keys without a record, so that Load does not restore such a key.
func (tx *Tx) BeginLoad() {
	tx.t.loading, tx.t.unscanned = &loading{deleted: make(map[string]int64)}, true
	tx.t.replaced.begin()
	tx.t.adopted = false
}

// EndLoad ends a load. The caller calls it after the last Load, and AdvanceClock before it.
func (tx *Tx) EndLoad() {
	tx.t.loading, tx.t.lastRead = nil, tx.t.now
	tx.t.noteStop()
}

// Load enters an entry that the map held at start. A key without a record becomes an unversioned record.
// The record of any peer wins over it. It is not in the order, and syncd does not send it, until Adopt.
//
// A key that already has a record keeps it. If the value in the map differs, the key is reread, and
// Load returns Stale.
func (tx *Tx) Load(key, value []byte) Outcome {
	t := tx.t
	if len(key) != t.opt.KeySize || len(value) != t.opt.ValueSize {
		t.stats.Refused++
		return Refused
	}
	h, s := t.findForChange(key)
	if s != 0 {
		defer t.finishChange()
		return t.loadKnown(s, value)
	}
	if s = t.create(h, key); s == 0 {
		return Refused
	}
	t.makeLive(s, value)
	m := t.meta(s)
	m.owner = selfID
	m.flags |= flagUnversioned | flagLoaded
	t.noteLoaded(s)
	if t.lacksTimer(value) {
		t.setFlags(m, 0, flagEntry)
	}
	t.link(unversioned, s)
	t.stats.Unversioned++
	if t.loading != nil {
		t.rereadLoaded(s, key)
	}
	return Accepted
}

// rereadLoaded requests a reread of a key that was deleted during the load. If the data plane deleted the
// key, the record is a tombstone until the reread.
func (t *Table) rereadLoaded(s uint32, key []byte) {
	at, uncertain := t.loading.deletedDuringLoad(key)
	if !uncertain {
		return
	}
	if at > 0 {
		t.makeTombstone(s, at)
		t.stamp(s, t.versionAt(at), selfID)
	}
	t.requestReread(s)
	if at == deletedByCall {
		t.noteDeleteSeen(s, Caller{})
	}
}

// loadKnown handles an entry whose key has a record.
func (t *Table) loadKnown(s uint32, value []byte) Outcome {
	m := t.meta(s)
	switch {
	case m.live() && t.equalSignificant(s, value):
		return Unchanged
	case m.is(flagDirty):
		return Ignored
	default:
		t.requestReread(s) // the value may be older than the writer's write, or the key may have changed since
		return Stale
	}
}

// AdoptedVersion is the version of records that a node found in its map and that no peer had, until they
// change. It is below all other versions except NamedVersion, because the time of the last write is not available. A node that
// was isolated meanwhile and that has the record with its real version therefore wins. Options.AdoptVersion replaces it for
// records of this node.
const AdoptedVersion Version = 2

// NamedVersion is the version of an entry of the local map of which peers have only named the owner. It is below
// AdoptedVersion, so that the record of the owner wins, whenever it arrives. See NoteOwner.
const NamedVersion Version = 1

// Adopt makes up to limit unversioned records records of this node, or of another owner: see NoteOwner and Options.Stop. It forgets
// unversioned records whose key has left the map. It returns true if there are more. The caller calls it
// after the initial sync has delivered the records of the peers. The table is complete once Adopt has
// returned false.
func (tx *Tx) Adopt(limit int) (more bool) {
	t := tx.t
	for range limit {
		s := t.meta(unversioned).next
		if s == unversioned {
			t.endAdoption()
			return false
		}
		if !t.meta(s).live() {
			t.forget(s) // no other node has it: see deleteUnversioned
			continue
		}
		t.adoptFor(s, t.adopter(t.key(s)))
	}
	if t.stats.Unversioned > 0 {
		return true
	}
	t.endAdoption()
	return false
}

// endAdoption discards what was noted for unversioned records.
func (t *Table) endAdoption() {
	t.adopted = true
	t.replaced.end()
	t.foreign, t.opt.Stop, t.stopBuf = foreign{}, Stop{}, nil
}

// Unversioned returns the number of records that Adopt has not adopted yet.
func (tx *Tx) Unversioned() int { return tx.t.stats.Unversioned }
