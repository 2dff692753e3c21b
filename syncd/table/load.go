package table

// loadDeletes bounds how many keys deleted during a load are told apart. Beyond,
// each loaded key is read again.
const loadDeletes = 1 << 16

// loading remembers the unknown keys that were deleted while the first content was
// being read: what was read of them may be older.
type loading struct {
	deleted map[string]int64 // when the data plane did, which means it; or 0
	all     bool             // too many to tell apart
}

func (l *loading) note(c *Change) {
	if len(l.deleted) == loadDeletes {
		l.all = true
		return
	}
	at := int64(0)
	if c.Context < ContextSyscall {
		at = c.Time
	}
	l.deleted[string(c.Key)] = at
}

func (l *loading) doubts(key []byte) (deleted int64, doubt bool) {
	deleted, known := l.deleted[string(key)]
	return deleted, known || l.all
}

// BeginLoad must come before the map is read, and after its hooks are attached:
// from here on deletes of unknown keys are remembered, so that Load does not
// bring such a key back.
func (tx *Tx) BeginLoad() {
	tx.t.loading, tx.t.unsure = &loading{deleted: make(map[string]int64)}, true
}

// EndLoad must come after the last Load.
func (tx *Tx) EndLoad() { tx.t.loading = nil }

// Load enters a pair that the map held at start. A key that the table does not
// know becomes an unversioned record: any peer's record wins over it, and it
// is not in the order, and so not streamed, until Claim.
//
// A key that the table knows by now keeps its record. When the map held
// something else, the key is read again (Stale).
func (tx *Tx) Load(key, value []byte) Outcome {
	t := tx.t
	if len(key) != t.opt.KeySize || len(value) != t.opt.ValueSize {
		t.stats.Refused++
		return Refused
	}
	h, s := t.open(key)
	if s != 0 {
		defer t.refreeze()
		return t.loadKnown(s, value)
	}
	if s = t.create(h, key); s == 0 {
		return Refused
	}
	t.fill(s, value)
	m := t.meta(s)
	m.owner = selfID
	m.flags |= flagUnversioned | flagLoaded
	t.link(unversioned, s)
	t.stats.Unversioned++
	if t.loading != nil {
		t.doubtLoaded(s, key)
	}
	return Accepted
}

// doubtLoaded has a key read again that was deleted during the load. If it was the data plane
// that did, it counts as deleted until then.
func (t *Table) doubtLoaded(s uint32, key []byte) {
	at, doubt := t.loading.doubts(key)
	if !doubt {
		return
	}
	if at > 0 {
		t.kill(s, at)
		t.stamp(s, t.versionAt(at), selfID)
	}
	t.recheck(s)
}

func (t *Table) loadKnown(s uint32, value []byte) Outcome {
	m := t.meta(s)
	switch {
	case m.live() && t.same(s, value):
		return Unchanged
	case m.is(flagDirty):
		return Ignored
	default:
		t.recheck(s) // it may have been read before the writer's write, or changed since
		return Stale
	}
}

// ClaimedVersion is that of records which a node found in its map and nobody knew, until
// they change. It is below all others: when they were written nobody can say, and whoever
// can, were it a node that was cut off meanwhile, knows better.
const ClaimedVersion Version = 1

// Claim makes up to limit unversioned records this node's, with ClaimedVersion, and forgets
// those whose key has vanished from the map. Call it once the first sync has brought what
// peers know of them; until it has returned false the table is not complete.
func (tx *Tx) Claim(limit int) (more bool) {
	t := tx.t
	for range limit {
		s := t.meta(unversioned).next
		if s == unversioned {
			return false
		}
		if !t.meta(s).live() {
			t.forget(s) // nobody knows of it: see vanish
			continue
		}
		t.stamp(s, ClaimedVersion, selfID)
	}
	return t.stats.Unversioned > 0
}

// Unversioned returns the number of records that are still to be claimed.
func (tx *Tx) Unversioned() int { return tx.t.stats.Unversioned }
