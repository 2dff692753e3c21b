package table

// loadDeletes bounds how many keys deleted during a load are told apart. Beyond,
// each loaded key is read again.
const loadDeletes = 1 << 16

// loading remembers, by their hashes, the unknown keys that were deleted while
// the first content was being read: what was read of them may be older.
type loading struct {
	deleted map[uint32]struct{}
	all     bool // too many to tell apart
}

func (l *loading) note(hash uint32) {
	if len(l.deleted) == loadDeletes {
		l.all = true
		return
	}
	l.deleted[hash] = struct{}{}
}

func (l *loading) doubts(hash uint32) bool {
	_, known := l.deleted[hash]
	return known || l.all
}

// BeginLoad must come before the map is read, and after its hooks are attached:
// from here on deletes of unknown keys are remembered, so that Load does not
// bring such a key back.
func (tx *Tx) BeginLoad() { tx.t.loading = &loading{deleted: make(map[uint32]struct{})} }

// EndLoad must come after the last Load.
func (tx *Tx) EndLoad() { tx.t.loading = nil }

// Load enters a pair that the map held at start. A key that the table does not
// know becomes an unversioned record: any peer's record wins over it, and it
// is not in the order, and so not streamed, until Claim.
//
// A key that the table knows by now keeps its record. When the map holds
// something else, that is put right: a peer's record is written again
// (Restored), and of one of ours a recheck tells (Stale).
func (tx *Tx) Load(key, value []byte) Outcome {
	t := tx.t
	if len(key) != t.opt.KeySize || len(value) != t.opt.ValueSize {
		t.stats.Refused++
		return Refused
	}
	h, s := t.find(key)
	if s != 0 {
		return t.loadKnown(s, value)
	}
	if s = t.create(h, key); s == 0 {
		return Refused
	}
	t.fill(s, value)
	m := t.meta(s)
	m.owner = selfID
	m.flags |= flagUnversioned
	t.link(unversioned, s)
	t.stats.Unversioned++
	if t.loading != nil && t.loading.doubts(h) {
		t.recheck(s)
	}
	return Accepted
}

func (t *Table) loadKnown(s uint32, value []byte) Outcome {
	m := t.meta(s)
	switch {
	case m.live() && t.same(s, value):
		return Unchanged
	case m.is(flagDirty):
		return Ignored
	case t.ours(m.owner):
		t.recheck(s)
		return Stale
	default:
		t.markDirty(s)
		t.moveTail(s)
		t.stats.Restored++
		return Restored
	}
}

// Claim makes up to limit unversioned records changes of this node, made now.
// Call it once the first sync has brought what peers know of them; until it has
// returned false the table is not complete.
func (tx *Tx) Claim(now int64, limit int) (more bool) {
	t := tx.t
	v := t.versionAt(now)
	for range limit {
		s := t.meta(unversioned).next
		if s == unversioned {
			return false
		}
		t.stamp(s, v, selfID)
	}
	return t.stats.Unversioned > 0
}

// Unversioned returns the number of records that are still to be claimed.
func (tx *Tx) Unversioned() int { return tx.t.stats.Unversioned }
