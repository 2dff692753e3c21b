package table

// Remote merges a record that a peer sent. It accepts the record if the record's (version, owner) is above
// that of the local record. An accepted record becomes dirty if the kernel holds different content. now is
// the wall clock in nanoseconds. The delta is borrowed for the call. Remote may write to d.Value, see
// Delta.Keep.
//
// For a record of an earlier incarnation of this node the local map may take precedence: see mergeOwn.
func (tx *Tx) Remote(d *Delta, now int64, opt RemoteOptions) Outcome {
	o := tx.t.remote(d, now, opt)
	tx.t.finishChange()
	if o != Refused && tx.t.ours(d.Owner) {
		tx.t.unheld.noteMerged(d, tx.t.seq)
	}
	switch o {
	case Accepted:
		tx.t.stats.RemoteAccepted++
	case Unchanged, Stale:
		tx.t.stats.RemoteStale++
	}
	return o
}

// Unadopted reports whether the table has entries of the kernel map for which no version is decided yet: see
// Adopt.
func (tx *Tx) Unadopted() bool { return tx.t.stats.Unversioned > 0 }

// remote merges a record without finishChange and without the counters of accepted, unchanged and stale
// deltas.
func (t *Table) remote(d *Delta, now int64, opt RemoteOptions) Outcome {
	if len(d.Key) != t.opt.KeySize || (!d.Delete && len(d.Value) != t.opt.ValueSize) ||
		d.Version == 0 || d.Version > maxVersion || int(d.Owner) >= len(t.owners.list) {
		t.stats.Refused++
		return Refused
	}
	// The sender's clock may be ahead. Later local writes must still get higher versions.
	t.skew.raise(int64(d.Version)-now-t.clock.offset, now, int64(t.opt.MaxSkew))
	h, s := t.findForChange(d.Key)
	if s == 0 && d.Delete && opt.Touch && t.isForgottenEarly(d) {
		return Stale
	}
	if s != 0 && t.mergeOverFound(d, s, opt) {
		return Stale
	}
	if s != 0 {
		t.answersSuperseded(d, t.meta(s), opt)
	}
	if t.ours(d.Owner) && (s != 0 || !d.Expired) {
		if o, done := t.mergeOwn(d, h, s, now, opt); done {
			return o
		}
	}
	if from := &t.owners.list[d.Owner]; s != 0 && (from.unverified || from.ours) && t.defend(d, s, now, opt) {
		return Defended
	}
	if d.Expired {
		return t.remoteExpired(d, h, s, now)
	}
	// A live record adds to the live records of the table or of another owner, and therefore needs admission. A delta that is
	// not newer needs none.
	if s != 0 && !t.replacesRecord(d, t.meta(s), opt) && !t.replacesNamed(d, s, opt) {
		return t.mergeNotNewer(d, s, opt)
	}
	if !d.Delete {
		if !t.admitsOver(d.Owner, s, now) {
			t.stats.Rejected++
			return Refused
		}
		if s != 0 && t.meta(s).is(flagFree) {
			s = 0 // admits expired an evicted record and forgot this tombstone for it
		}
	}
	if s == 0 {
		if s = t.create(h, d.Key); s == 0 {
			return Refused
		}
		t.put(s, d.Value, d.Delete, now)
		// The map may still have a deleted key if the read of the map skipped it. A scan would then take it
		// for a new key.
		if !d.Delete || t.unscanned {
			t.markDirty(s)
		}
		t.stampDelta(s, d, now)
		return Accepted
	}
	m := t.meta(s)
	loaded := t.noteReplacedLoad(d, s)
	t.copyKept(s, d)
	// A dirty record stays dirty, because the kernel still holds an older entry. If a reread is pending,
	// the kernel's entry may differ from the record.
	if m.is(flagDirty|flagUncertain) || t.kernelDiffers(d, s) {
		t.markDirty(s)
	}
	t.put(s, d.Value, d.Delete, now)
	if loaded {
		m.flags |= flagLoaded
	}
	t.stampDelta(s, d, now)
	return Accepted
}

// mergeNotNewer handles a delta that is not above the record. In a full sync such a delta proves that the
// peer still has the key.
func (t *Table) mergeNotNewer(d *Delta, s uint32, opt RemoteOptions) Outcome {
	m := t.meta(s)
	if opt.Replace != ReplaceNothing && t.replaces(d, s, &opt) {
		return Accepted
	}
	// The peer has a key that this table has as deleted.
	if opt.Repair && !d.Delete && !m.live() && m.owner != d.Owner {
		t.resendDelete(s, d.Owner, opt.Sender)
	}
	// A record that moves to the tail stays after the Sweep that follows the full sync.
	if opt.Touch && m.live() && t.owners.list[m.owner].Node == t.owners.list[d.Owner].Node && !retracted(d, m, opt) {
		t.moveTail(s)
	}
	if d.Version == m.version && d.Owner == m.owner && d.Delete != m.live() {
		m.flags &^= flagUnfit // the owner has it again
		return Unchanged
	}
	return Stale
}

// replaces replaces a record of another node with a delta of the same owner if the two differ. It ignores
// differences in bits that digests do not cover.
func (t *Table) replaces(d *Delta, s uint32, opt *RemoteOptions) bool {
	m, how := t.meta(s), opt.Replace
	same := d.Version == m.version
	// Only a record with the delta's owner is replaced, and never a record of this node. The versions must
	// match unless the sender is the owner itself.
	switch {
	case d.Owner != m.owner || t.ours(d.Owner) || (!same && how != ReplaceAnyVersion):
		return false
	case d.Version < m.version && opt.Sender != 0 && d.Owner != opt.Sender && m.seq > opt.Acknowledged:
		return false // the sender may not have received this record of its earlier incarnation
	case m.is(flagExpired) && how != ReplaceAnyVersion:
		return false // the fallback sender has expired it
	case same && d.Delete == !m.live() && (d.Delete || t.equalCompared(s, d.Value)):
		return false
	}
	t.copyKept(s, d)
	t.markDirty(s)
	t.put(s, d.Value, d.Delete, m.seen)
	t.stamp(s, d.Version, d.Owner)
	t.stats.Replaced++
	return true
}

// kernelDiffers reports whether the kernel's entry differs from the delta. It uses the record, which must
// not be dirty, as the content of the kernel.
func (t *Table) kernelDiffers(d *Delta, s uint32) bool {
	m := t.meta(s)
	if m.is(flagLateWrite) {
		return true
	}
	// An evicted entry has left the kernel map. The entry of a released tombstone may still be in it.
	inKernel := (m.live() || m.is(flagReleased)) && !m.is(flagEvicted|flagHeld)
	if d.Delete || !inKernel {
		return inKernel == d.Delete
	}
	return !t.equalCarried(s, d.Value)
}

// replacesRecord reports whether a delta replaces a record by its version. In a repair, a live record that
// a peer holds also replaces an inferred tombstone with a higher version: the owner of the tombstone has sent
// neither.
func (t *Table) replacesRecord(d *Delta, m *meta, opt RemoteOptions) bool {
	return t.isNewer(d, m) || (opt.Repair && !d.Delete && m.is(flagInferred))
}

// replacesNamed decides between two entries that nodes found in their maps, if peers have named the same owner for both: see
// NoteOwner. If the owner has left, all nodes choose the same one. If it is back, they take that of the owner, which has chosen.
func (t *Table) replacesNamed(d *Delta, s uint32, opt RemoteOptions) bool {
	m := t.meta(s)
	if d.Version != NamedVersion || m.version != NamedVersion || d.Owner != m.owner || !m.live() || d.Delete {
		return false
	}
	is, was := t.digester.hashValue(d.Key, d.Value), t.digester.hashValue(d.Key, t.value(s))
	return is > was || is != was && opt.Sender != 0 && t.owners.list[opt.Sender].Node == t.owners.list[d.Owner].Node
}

// stampDelta sets the version and the owner of a record to those of a delta.
func (t *Table) stampDelta(s uint32, d *Delta, now int64) {
	m := t.meta(s)
	m.seen = max(m.seen, now)
	m.setCPU(cpuNone)
	t.stamp(s, d.Version, d.Owner)
}

// isNewer reports whether a delta is above a record: its version and owner are higher, or they are equal
// and it replaces a record without a delete by one with a delete. An inferred tombstone is below every delta
// with its version and owner, because that delta is evidence and the tombstone is not.
func (t *Table) isNewer(d *Delta, m *meta) bool {
	switch {
	case d.Version != m.version:
		return d.Version > m.version
	case d.Owner != m.owner:
		return t.owners.list[d.Owner].Compare(t.owners.list[m.owner].Owner) > 0
	default:
		return (d.Delete && m.live()) || m.is(flagInferred)
	}
}
