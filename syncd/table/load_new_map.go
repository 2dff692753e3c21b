package table

import "github.com/zeebo/xxh3"

// The content of a new map may be a copy of the former one: old values, and entries that have ended since. A read does not
// show whether the load balancer wrote an entry or copied it. Where a live peer owns the record, the record therefore stays,
// and the writer restores it, unless this node uses the entry after the read. For all other keys the entry counts as written
// by the load balancer of this node. It may be the only writer of the key, so that its last write would be lost otherwise.

// maxCopies limits the number of copies. Further keys are restored without a reread.
const maxCopies = 1 << 20

// copies has the hash of the value that the read of a new map found, by the hash of the key, for entries that differ from
// the record of a live peer and that were not reread since. Each has a record. Nil: there are none. The lock of the table protects it.
type copies map[uint64]uint64

// copyBytes is the approximate memory of an element of copies in bytes.
const copyBytes = 40

// LoadNewMap enters an entry that the first read of a new map found, after Refill. c is as for Scanned, with a Reading. The
// record of a live peer takes precedence, unless Options.NewMapWins is set. The table then rereads the key, and the writer
// restores the record if the entry has not changed since. Other entries count as written by the data plane.
//
// complete is false if peers have yet to send records. An entry without a record is then unversioned until Adopt.
func (tx *Tx) LoadNewMap(c *Change, complete bool) Outcome {
	t := tx.t
	if len(c.Key) != t.opt.KeySize || len(c.Value) != t.opt.ValueSize {
		t.stats.Refused++
		return Refused
	}
	h, s := t.findForChange(c.Key)
	if s != 0 && !t.opt.NewMapWins {
		// An equal entry shows no use: the load balancer has not taken over the record of a node that has left, or has handed
		// it over.
		m := t.meta(s)
		equal := m.live() && !t.ours(m.owner) && t.equalCarried(s, c.Value)
		switch {
		case m.is(flagUnversioned) && t.usedByPeer(s):
			defer t.finishChange()
			return t.loadFormer(c, s)
		case equal || t.ownedByLivePeer(s):
			defer t.finishChange()
			return t.loadCopy(c, s)
		}
	}
	if s != 0 {
		t.loadOwn(c, s)
	}
	t.finishChange()
	if s == 0 && !complete && !c.Read.markedAbsent(h) {
		return tx.Load(c.Key, c.Value)
	}
	c.Context = ContextProcess
	return tx.Local(c)
}

// loadOwn notes that a new map holds the record of a key. The writer might replace a later change by it.
func (t *Table) loadOwn(c *Change, s uint32) {
	if m := t.meta(s); m.live() && t.ours(m.owner) && !m.is(flagUnversioned) && t.equalCarried(s, c.Value) && !c.Read.isStale(s) {
		t.clearDirty(s)
	}
}

// loadFormer handles an entry of a new map whose key has an unversioned record, and a live peer has a newer record that this node
// cannot decode. The record stays unversioned, so that it does not win over the peer's, and gets the value of the new map.
func (t *Table) loadFormer(c *Change, s uint32) Outcome {
	m := t.meta(s)
	if c.Read.isStale(s) && m.live() {
		return Ignored // a hook has reported a later change
	}
	t.makeLive(s, c.Value)
	t.clearDirty(s)
	t.markScanned(s)
	m.noteEvidence(c)
	return Accepted
}

// loadCopy handles an entry of a new map whose record a live peer owns, or that equals the record of another node.
func (t *Table) loadCopy(c *Change, s uint32) Outcome {
	m := t.meta(s)
	stale := c.Read.isStale(s) // a hook may have reported a later change
	switch {
	case stale && m.live():
		return Ignored // the writer writes the record
	case m.is(flagExpired):
		t.loadExpired(c, s, stale)
		return Ignored
	case !stale && m.live() && t.equalCarried(s, c.Value):
		if t.lacksTimer(c.Value) {
			t.setFlags(m, 0, flagEntry)
		}
		t.clearDirty(s)
		t.markScanned(s)
		return Unchanged
	case len(t.copies) == maxCopies:
		t.markDirty(s)
		t.moveTail(s)
		return Restored
	}
	if t.copies == nil {
		t.copies = make(copies)
	}
	t.copies[t.copyKey(c.Key)] = t.hashCarried(c.Value)
	t.clearDirty(s)
	t.requestReread(s)
	return Stale
}

// loadExpired releases an entry of a new map whose record its owner has expired. An expiry deletes no entry.
func (t *Table) loadExpired(c *Change, s uint32, stale bool) {
	t.clearDirty(s)
	copy(t.value(s), c.Value)
	if !t.meta(s).is(flagReleased) {
		t.releaseEntry(s)
	}
	if t.markScanned(s); stale {
		t.requestReread(s)
	}
}

// restoreCopy makes the writer restore the record of a live peer if a reread shows the entry that the read of the new map
// found. done is false if the entry has changed since, or if the key has no copy.
func (t *Table) restoreCopy(c *Change, s uint32) (o Outcome, done bool) {
	if len(t.copies) == 0 {
		return 0, false
	}
	key := t.copyKey(c.Key)
	found, known := t.copies[key]
	if !known {
		return 0, false
	}
	m := t.meta(s)
	if t.predates(c, s) && t.ownedByLivePeer(s) {
		t.requestReread(s)
		return Stale, true
	}
	delete(t.copies, key)
	if c.Op != OpUpdate || !t.ownedByLivePeer(s) || t.hashCarried(c.Value) != found {
		return 0, false
	}
	m.noteEvidence(c)
	t.markDirty(s)
	t.moveTail(s)
	return Restored, true
}

// useCopy notes that the entry of a key stops being a copy, because a hook has reported a change, or that the
// table forgets its record.
func (t *Table) useCopy(key []byte) {
	if len(t.copies) > 0 {
		delete(t.copies, t.copyKey(key))
	}
}

// isCopy reports whether the entry of a record in a new map waits for its reread.
func (t *Table) isCopy(s uint32) bool {
	if len(t.copies) == 0 {
		return false
	}
	_, known := t.copies[t.copyKey(t.key(s))]
	return known
}

// copyKey returns the hash of a key for copies.
func (t *Table) copyKey(key []byte) uint64 { return xxh3.HashSeed(key, t.opt.Seed) }

// hashCarried returns the hash of the replicated bits of a value.
func (t *Table) hashCarried(value []byte) uint64 {
	mask := t.opt.Carried
	if mask == nil {
		return xxh3.HashSeed(value, t.opt.Seed)
	}
	carried := make([]byte, len(value))
	for i := range value {
		carried[i] = value[i] & mask[i]
	}
	return xxh3.HashSeed(carried, t.opt.Seed)
}

// PendingCopies returns the number of entries of a new map that differ from the records of live peers and wait for their
// reread. The writer restores them after that.
func (tx *Tx) PendingCopies() int { return len(tx.t.copies) }
