package table

import "slices"

// Displacement in a full kernel map follows the rule "the longest queue drops". A group is a live node,
// with the records of all its incarnations. All owners that are not live form one group together, so
// additional node names do not bring additional shares.
//
// A record that the full map refuses displaces the oldest entry of the largest group, if that group has at
// least two entries more than the record's own group. Otherwise it displaces an older entry of its own
// group. A group that has at most an equal share of the entries of other nodes therefore loses none to
// another group, however many records another node sends.
//
// Entries of this node are never displaced. Records of this incarnation displace entries of the largest
// group. Records of its earlier incarnations come from peers, so they displace entries of a group only while
// that group has at least two entries more than this node. Records of unverified owners displace nothing.

// displaceSteps limits the number of records that one call of Displace examines.
const displaceSteps = 128

// displaced are the flags of a record that the writer removed from a full kernel map. The writer retries it
// like a record whose write failed. Only displaced records have all three flags.
const displaced = flagDirty | flagFailed | flagEvicted

// ownerGroup is a group of owners with entries in the kernel map: a live node, or all other owners. The
// lock of the table protects it. See SetMembers.
type ownerGroup struct {
	// node is the name of the live node. Empty: all other owners.
	node string
	// victimCursor is behind the last victim of the group; the search for the next one continues there.
	// Nil: no search was started. It is in Table.cursors.
	victimCursor *Cursor
	// examined is the number of records that victimCursor has passed since the last victim, or since the last
	// RequeueFailed. Above twice the number of records, the group has no victim.
	examined int
	// untried is true if victimCursor has passed a record of the group that kernelEntries counts and that the
	// writer has yet to write: a record that it has not tried yet, or one with the room of a victim. It becomes
	// false with the next victim, and with the next refused record that is deferred because of it.
	untried bool
}

// Displace selects a victim for a record whose write failed because the kernel map is full. If it has found
// one, it describes it in victim, and the writer writes the refused record before all others, so that no other
// record takes the room. With more, the search is not finished: the caller calls Displace again for the same
// record, and may release the lock of the table before. Otherwise no entry may be displaced, and the refused
// record stays failed.
//
// The victim stays in the table like a record whose write failed. The caller deletes the victim from the
// kernel map before it writes anything else, and then calls Displaced. refused and v are as for Applied.
func (tx *Tx) Displace(refused Ref, v Version, victim *Record) (found, more bool) {
	t := tx.t
	s := uint32(refused)
	if s < firstSlot || s >= t.allocated {
		return false, false
	}
	m := t.meta(s)
	if m.flags&(flagFree|flagNotHeld|displaced) != flagNotHeld|flagDirty|flagFailed || m.version != v || !m.live() {
		return false, false // the record has changed since the map refused it
	}
	own := t.owners.list[m.owner].group
	from := t.victimGroup(m)
	if from == nil {
		return false, false
	}
	old := t.nextVictim(from)
	switch {
	// The search has not covered the whole order twice.
	case old == 0 && from.examined <= 2*t.used:
		return false, true
	// The group may have no entry at all. The refused record is tried again after the group's records. Each of
	// them is then in the map or does not count, so this ends.
	case old == 0 && from != own && from.untried:
		from.untried = false
		t.deferred.push(s)
		tx.changed = true
		return false, false
	// The group has no entry that may be displaced, or none that is older than the record.
	case old == 0, from == own && t.meta(old).version >= m.version:
		return false, false
	}
	t.displace(old, from, victim)
	t.clearNotHeld(m)
	t.withVictim.push(s)
	return true, false
}

// displace marks a victim of a group as displaced and describes it.
func (t *Table) displace(s uint32, from *ownerGroup, victim *Record) {
	from.victimCursor.step()
	t.markDirty(s)
	t.markFailed(s)
	t.setFlags(t.meta(s), 0, flagEvicted)
	t.describe(s, victim)
	t.stats.Displaced++
	t.tx.changed = true
}

// victimGroup returns the group that gives up an entry for a record, or nil if no entry may be displaced.
func (t *Table) victimGroup(m *meta) *ownerGroup {
	w := &t.owners.list[m.owner]
	if w.unverified {
		return nil
	}
	most, entries, own := t.largestGroup(w.group)
	earlier := w.ours && m.owner != selfID
	if earlier {
		own = t.kernelEntries(w.Node)
	}
	// A difference of one entry counts as equal shares.
	if (w.group != nil || earlier) && entries <= own+1 {
		return w.group // nil for an earlier incarnation: entries of this node are not displaced
	}
	return most
}

// largestGroup returns the group with the most entries in the kernel map, nil if none has an entry, and its number of entries.
// of is the number of entries of group g.
func (t *Table) largestGroup(g *ownerGroup) (most *ownerGroup, entries, of int) {
	// rest is the number of entries of owners that are neither live nor this node.
	rest := t.stats.Live - t.stats.Unversioned - t.notHeld - t.room.byLack[lacksEvicted] - t.kernelEntries(t.owners.list[selfID].Node)
	count := func(h *ownerGroup, n int) {
		if h == g {
			of = n
		}
		if n > entries {
			most, entries = h, n
		}
	}
	for _, h := range t.owners.groups {
		n := t.kernelEntries(h.node)
		rest -= n
		count(h, n)
	}
	count(&t.owners.otherOwners, rest)
	return most, entries, of
}

// kernelEntries returns the number of records of a node in the kernel map. It includes records that the
// writer has not tried to write yet.
func (t *Table) kernelEntries(node string) int {
	d := t.digester.nodes[node]
	if d == nil {
		return 0
	}
	return d.live - d.notHeld - d.evicted
}

// nextVictim returns the next record of a group that may be displaced, or 0 if it found none within
// displaceSteps records. It moves the group's cursor over all records before it. At the end of the order
// the cursor continues at the first record.
func (t *Table) nextVictim(h *ownerGroup) uint32 {
	if h.victimCursor == nil {
		h.victimCursor = &Cursor{t: t}
		t.cursors = append(t.cursors, h.victimCursor)
		h.victimCursor.moveTo(order)
	}
	for range displaceSteps {
		s := t.meta(h.victimCursor.at).next
		h.examined++
		if s == order {
			h.victimCursor.moveTo(order)
			continue
		}
		if m := t.meta(s); m.live() && t.owners.list[m.owner].group == h {
			switch {
			case m.inKernelMap():
				h.examined, h.untried = 0, false
				return s
			case m.flags&(flagDirty|flagNotHeld|flagFree) == flagDirty:
				h.untried = true
			}
		}
		h.victimCursor.step()
	}
	return 0
}

// inKernelMap reports whether the kernel map certainly holds an entry of a live record, perhaps an older one.
func (m *meta) inKernelMap() bool {
	if m.is(flagEvicted | flagReread | flagUncertain | flagHeld) {
		return false
	}
	return !m.is(flagDirty) || m.is(flagEntry)
}

// rewindVictims moves the cursor of the owner's group back to a record that the kernel map accepted after
// an earlier failure or displacement. The next search can then find the record.
func (t *Table) rewindVictims(s uint32) {
	h := t.owners.list[t.meta(s).owner].group
	if h != nil && h.victimCursor != nil && h.victimCursor.pos >= t.meta(s).seq {
		h.victimCursor.moveTo(t.meta(s).prev)
	}
}

// moveTo moves a cursor behind a record, or before the first record if s is order.
func (c *Cursor) moveTo(s uint32) {
	c.at, c.pos = s, c.t.meta(s).seq
	c.t.meta(s).flags |= flagCursor
}

// closeVictimCursor removes the cursor of a group. The next search starts at the first record, and looks at
// all of them.
func (t *Table) closeVictimCursor(h *ownerGroup) {
	h.examined, h.untried = 0, false
	if h.victimCursor != nil {
		t.cursors = slices.DeleteFunc(t.cursors, func(c *Cursor) bool { return c == h.victimCursor })
		h.victimCursor = nil
	}
}

// restartVictimSearches lets each search examine all records again. A search that has found no victim would
// otherwise examine only displaceSteps records for each retry, also if there are victims by then.
func (t *Table) restartVictimSearches() {
	for _, h := range t.owners.groups {
		h.examined = 0
	}
	t.owners.otherOwners.examined = 0
}

// Displaced reports that a victim of Displace was deleted from the kernel map. now is a time after the
// delete, by the clock of changes. If the record has changed meanwhile, the writer writes it again, because
// the delete has removed the entry from the map regardless of its last writer.
func (tx *Tx) Displaced(ref Ref, now int64) {
	t := tx.t
	s := uint32(ref)
	if s < firstSlot || s >= t.allocated {
		return
	}
	m := t.meta(s)
	t.invalidateReadings(s)
	switch {
	case m.is(flagFree|flagUnversioned) || !m.live():
	case m.flags&displaced == displaced:
		m.seen = max(m.seen, now)
	case !m.is(flagDirty):
		t.markDirty(s)
		t.moveTail(s)
	}
}
