package table

// Absence describes an answer in which a peer has sent all records that it owns, or those of some buckets.
// The sweep after that answer infers a delete from each record that the answer lacks. See Sweep.
type Absence struct {
	// Peer is the node that has sent the answer.
	Peer Owner
	// Acknowledged is the position of this table up to which the peer holds all records. Above it, records
	// of other incarnations of the peer stay: the peer may have lost its map, and not have received them
	// yet. It decides about them when it receives them.
	Acknowledged uint64
	// Before is the first position that the merge of the answer could assign: Head plus one when the answer
	// was requested.
	Before uint64
	// Buckets are the buckets of the answer. Nil: all.
	Buckets *BucketSet
	// DigestID is the Table.DigestID to which Buckets belong. If the digest key has changed, the buckets have other keys, and
	// Sweep infers nothing. Without Buckets it does not count.
	DigestID uint64
	// Covered reports that the answer proves nothing about a record, because a node may have filtered the
	// record on its way. See Coverage. Nil: it proves the absence of each record. Key and value are borrowed.
	Covered func(key, value []byte) bool
	// Unfit reports that the peer's map cannot hold a record that is not covered. The peer drops such a record when it converts
	// its table to another layout, so its absence proves nothing, also after another conversion. Nil: it can hold each record.
	Unfit func(key, value []byte) bool
}

// Sweep deletes the live records of a peer whose position is below Absence.Before, unless they are covered.
// After an answer that was merged with RemoteOptions.Touch and Cover, these are the records that the peer no
// longer has. The peer has sent no delete, so the tombstone is inferred: it has the version and the owner of
// the record, deletes the entry of this node's kernel map, and is never sent. A record with that version
// and owner, a delete, and any newer change replace it.
//
// A record that the peer has dropped, and that its map can hold again, becomes a record of this node: see Absence.Unfit.
//
// now is the wall clock in nanoseconds. Sweep looks at up to limit records and returns the number of those
// that it deleted. While more is true, the caller calls it again with the same cursor. The first call needs
// a new cursor at position 0.
func (tx *Tx) Sweep(a *Absence, now int64, c *Cursor, limit int) (deleted int, more bool) {
	t := tx.t
	if a.Buckets != nil && a.DigestID != t.DigestID() {
		return 0, false
	}
	for range limit {
		s := c.nextBounded()
		if s == 0 || c.pos >= a.Before {
			return deleted, false
		}
		// Compact tombstones are not live.
		if s&compactBit != 0 || !t.absent(s, a, c.pos) {
			continue
		}
		m := t.meta(s)
		switch {
		case a.Unfit != nil && a.Unfit(t.key(s), t.value(s)):
			m.flags |= flagUnfit
		case m.is(flagUnfit):
			t.stamp(s, m.version+1, selfID) // the peer has dropped it, and can hold it again
		case m.is(flagNamed):
			t.stamp(s, t.opt.AdoptVersion, selfID) // a third node named the owner of an entry of the local map: see NoteOwner
		default:
			t.inferDelete(s, now)
			deleted++
		}
	}
	return deleted, true
}

// inferDelete makes a record an inferred tombstone.
func (t *Table) inferDelete(s uint32, now int64) {
	m := t.meta(s)
	t.dropFromDigest(s)
	t.makeTombstone(s, now)
	m.flags |= flagInferred
	m.setCPU(cpuNone)
	t.markDirty(s)
	t.moveTail(s)
	t.stats.Swept++
}

// absent reports whether the peer no longer has the record at a position.
func (t *Table) absent(s uint32, a *Absence, position uint64) bool {
	m := t.meta(s)
	owner := t.owners.list[m.owner].Owner
	switch {
	case !m.live() || owner.Node != a.Peer.Node,
		owner != a.Peer && position > a.Acknowledged,
		a.Buckets != nil && !a.Buckets.Has(t.bucket(t.key(s))):
		return false
	}
	return a.Covered == nil || !a.Covered(t.key(s), t.value(s))
}

// Resend moves the record of a key to the tail, so that all streams send it again. The caller calls it once a record
// can be sent that it could not send before.
func (tx *Tx) Resend(key []byte) {
	t := tx.t
	if _, s := t.findForChange(key); s != 0 && !t.meta(s).is(flagUnversioned) {
		t.moveTail(s)
	}
	t.finishChange()
}

// Cover moves the live record of a key to the tail if any incarnation of a node owns it and its version is below a limit,
// so that the Sweep after the present answer leaves it. The caller calls it for a record that the node has and that this
// node did not merge. It reports whether the table has such a record.
func (tx *Tx) Cover(key []byte, node string, below Version) bool {
	t := tx.t
	if len(key) != t.opt.KeySize {
		return false
	}
	_, s := t.find(key)
	if s == 0 || !t.meta(s).live() || t.meta(s).version >= below || t.owners.list[t.meta(s).owner].Node != node {
		return false
	}
	t.moveTail(s)
	return true
}
