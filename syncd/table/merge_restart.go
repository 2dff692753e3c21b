package table

// mergeOwn merges a record that has this node as its owner. done is false if the ordinary merge applies.
//
// If the owner is this incarnation, the local record takes precedence over every delta. If it is an earlier
// incarnation, the result depends on whether the local map is the map of that time. If it is, an entry with
// the same content is still the record of the peers. An entry with different content was changed, and a
// missing entry was deleted, while syncd was not running, unless the map has never held it (see Unheld).
//
// If the map is new, it never had the old records. syncd refills it with them. A new map still takes
// precedence for the keys that it holds, and for keys that were changed in it since. Such a change stays a
// record of this incarnation even if a peer holds the same value, and a delete of a key that had no record yet
// stays a delete. Under the peer's version it would look
// like a record that refilled the map.
//
// The local content gets a version just above the peer's version. It wins over the old record, but not over
// the record of a third node that took the key over meanwhile.
func (t *Table) mergeOwn(d *Delta, h, s uint32, now int64, opt RemoteOptions) (o Outcome, done bool) {
	current := d.Owner == selfID
	if s != 0 && t.ownerLacks(d, s, opt) {
		return t.takeBack(d, s, now), true
	}
	cleared := s != 0 && !current && t.foundAbsent(s) && t.mayBeCleared(d)
	if cleared && !t.replaced.deleted(d.Key) {
		return 0, false
	}
	if s != 0 && t.isNewer(d, t.meta(s)) && !cleared || s == 0 && t.provesAbsence(d) {
		if o, done := t.holdAbsent(d, h, s, now); done {
			return o, true
		}
	}
	if s != 0 && !current && !d.Delete {
		t.noteFound(s)
	}
	if s == 0 {
		if !current && !t.provesAbsence(d) && !t.replaced.deleted(d.Key) {
			return 0, false
		}
	} else if m := t.meta(s); !t.isNewer(d, m) {
		return 0, false
	} else if !current && !t.hasLocalContent(d.Key, m) {
		return Accepted, t.restoreReplacedLoad(d, s, now)
	}
	if current {
		t.stats.RemoteConflictOwn++
	}
	if s == 0 {
		return t.mergeAbsentOwn(d, h, now), true
	}
	m := t.meta(s)
	// A drained node does not replicate that its map lacks the entry.
	if !current && !d.Delete && t.foundAbsent(s) && t.deltaHandedOver(d) && !t.replaced.deleted(d.Key) {
		if s = t.slotOfAbsent(d, h, s, now); s == 0 {
			return Refused, true
		}
		t.mergeEvictedOwn(s, d, now)
		return Accepted, true
	}
	if m.is(flagHeld) {
		if m.is(flagLateWrite) {
			t.markDirty(s)
		}
		t.put(s, nil, true, now) // the map lacks the entry
	}
	// The local content equals the peer's record. The record then keeps the peer's version and owner.
	if !current && (t.sameMap(d.Key) || m.is(flagLoaded)) && m.live() != d.Delete && (d.Delete || t.equalSignificant(s, d.Value)) {
		t.stampDelta(s, d, now)
		return Accepted, true
	}
	owner := selfID
	if !current && !d.Delete && m.live() && m.is(flagEvicted) && t.keptWhileDrained(m) {
		owner = d.Owner // it stays handed over, otherwise the absence of its entry would count as a delete
	}
	t.stamp(s, d.Version+1, owner)
	return Accepted, true
}

// ownerLacks reports whether the owner of a live record has answered with an older one of an earlier incarnation of this node.
// It does not have the record that this table has in its name, and a sweep would delete the entry, which the owner has. A record
// that was merged after the request of the answer stays, as in Sweep.
func (t *Table) ownerLacks(d *Delta, s uint32, opt RemoteOptions) bool {
	m := t.meta(s)
	return opt.Touch && opt.Sender != 0 && m.owner == opt.Sender && m.seq < opt.Before &&
		!d.Delete && m.live() && !m.is(flagUnversioned|flagHeld) && !t.isNewer(d, m)
}

// takeBack makes a record, whose owner lacks it, one of this node with the value of a delta. It refuses a delta of this
// incarnation, which knows its own records, and one above the limit of the table.
func (t *Table) takeBack(d *Delta, s uint32, now int64) Outcome {
	switch {
	case d.Owner == selfID:
		t.stats.Refused++
		return Refused
	case !t.admitsOver(d.Owner, s, now):
		t.stats.Rejected++
		return Refused
	}
	m := t.meta(s)
	v := m.version + 1
	t.copyKept(s, d)
	t.markDirty(s)
	t.put(s, d.Value, false, now)
	m.seen = max(m.seen, now)
	m.setCPU(cpuNone)
	t.stamp(s, v, selfID)
	return Accepted
}

// hasLocalContent reports whether a record has the content of the local map when a delta of an earlier
// incarnation for the same key arrives. A new map's value may have the version of an earlier incarnation if
// one peer had the value. Another peer may have a later record of that incarnation. In an LRU map, an absent key may have been
// evicted, so that its record has the content of a peer. So has one that a drained node keeps without an entry.
func (t *Table) hasLocalContent(key []byte, m *meta) bool {
	same := t.sameMap(key) && (!t.opt.LRU || t.opt.EvictionDeletes) && (!m.live() || !m.is(flagEvicted))
	return m.owner == selfID || (t.ours(m.owner) && (same || m.is(flagLoaded)))
}

// sameMap reports whether the local map is the one that an earlier incarnation replicated, and has held the
// entry of a key. Only then is the content of the map at start evidence for that key.
func (t *Table) sameMap(key []byte) bool { return t.opt.SameMap && !t.unheld.has(key) }

// provesAbsence reports whether the absence of a key without a record is evidence against a record of an earlier incarnation.
func (t *Table) provesAbsence(d *Delta) bool { return t.sameMap(d.Key) && !t.mayBeCleared(d) }

// mayBeCleared reports whether a record was handed over, and this incarnation has ended the handover before the record arrived.
// The load balancer may have cleared the map meanwhile.
func (t *Table) mayBeCleared(d *Delta) bool {
	return !d.Delete && d.Version <= t.owners.returned.covered(t.owners.list[d.Owner].Incarnation)
}

// foundAbsent reports whether the record in a slot is a tombstone whose key the map has lacked since the start, or that was deleted
// from it while the record was unversioned. A peer may have sent the tombstone as one of an earlier incarnation.
func (t *Table) foundAbsent(s uint32) bool {
	m := t.meta(s)
	return !m.live() && (m.is(flagUnversioned) || m.owner != selfID && t.hasLocalContent(t.key(s), m))
}

// slotOfAbsent returns the slot for a live record of an earlier incarnation without an entry. s is the slot of the key, 0 if it has no
// record. The slot is 0 if the table does not admit the record.
func (t *Table) slotOfAbsent(d *Delta, h, s uint32, now int64) uint32 {
	if !t.admitsOver(d.Owner, s, now) {
		t.stats.Rejected++
		return 0
	}
	if s != 0 && !t.meta(s).is(flagFree) {
		return s
	}
	return t.create(h, d.Key) // admitsOver may have forgotten the tombstone
}

// mergeAbsentOwn enters a record of this node whose key has no local record.
func (t *Table) mergeAbsentOwn(d *Delta, h uint32, now int64) Outcome {
	// In an LRU map a missing key counts as evicted, unless an event has reported its delete. So does one that was handed
	// over.
	kept := d.Owner != selfID && t.deltaHandedOver(d)
	evicted := !d.Delete && !t.replaced.deleted(d.Key) && (kept || t.opt.LRU && !t.opt.EvictionDeletes)
	// A record of this incarnation expires at once, so it needs no admission.
	if evicted && d.Owner != selfID && !t.admits(d.Owner, now) {
		t.stats.Rejected++
		return Refused
	}
	s := t.create(h, d.Key)
	if s == 0 {
		return Refused
	}
	if evicted {
		t.mergeEvictedOwn(s, d, now)
		return Accepted
	}
	t.makeTombstone(s, now)
	if d.Delete {
		t.stampDelta(s, d, now)
	} else {
		t.stamp(s, d.Version+1, selfID)
	}
	if t.unscanned {
		t.requestReread(s) // the load may have skipped the key
	}
	return Accepted
}
