package table

// RequestReread requests a reread of a key from the kernel map. Callers use it if a read of the key failed, or
// to find a change that no event reports. TakeRereads returns the key.
func (tx *Tx) RequestReread(key []byte) {
	t := tx.t
	if len(key) != t.opt.KeySize {
		t.stats.Refused++
		return
	}
	if _, s := t.findForChange(key); s != 0 {
		t.requestReread(s)
		t.finishChange()
		return
	}
	t.queueUnknownReread(key)
}

// RequestRereadOfChange is RequestReread for an event that reports a change without the value.
func (tx *Tx) RequestRereadOfChange(key []byte) {
	if len(key) == tx.t.opt.KeySize {
		tx.t.useCopy(key)
	}
	tx.RequestReread(key)
}

// RequestRereadOfDelete is RequestRereadOfChange for an event that reports a delete by bpf(2), without its order with
// other changes. If the reread does not find the key, it was deleted: it does not count as evicted, even in an
// LRU map.
func (tx *Tx) RequestRereadOfDelete(key []byte) {
	tx.RequestRereadOfChange(key)
	if len(key) != tx.t.opt.KeySize {
		return
	}
	if _, s := tx.t.find(key); s != 0 {
		tx.t.noteDeleteSeen(s, tx.t.clears.caller)
		return
	}
	tx.t.noteDeleted(&Change{Key: key, Context: ContextSyscall, Time: tx.t.now})
	if l := tx.t.loading; l != nil {
		l.noteDelete(&Change{Key: key, Context: ContextSyscall})
	}
}

// longPreemption is more than the time between a change and its event, which the kernel may extend by running other tasks, in
// nanoseconds.
const longPreemption = 1_000_000_000

// noteLateChange notes a change that arrives after a later one, and requests a reread of the key. Event
// times are not exact enough to order the writes of two CPUs. A dirty record is not read, because the
// writer is about to write it. It is read nevertheless if both changes have about the same time, because
// the writer may have written it before.
func (t *Table) noteLateChange(c *Change, s uint32) {
	m := t.meta(s)
	again := !m.is(flagDirty) || m.seen-c.Time <= timestampMargin
	seen := m.live() && m.owner == selfID && !m.is(flagUnversioned|flagEvicted|flagHeld) && m.seen-c.Time > longPreemption
	m.noteEvidence(c)
	if again {
		t.requestReread(s)
		// An entry of this node that was seen long after the delete is absent for another reason, such as a clear.
		if c.Op == OpDelete && c.Context != ContextReread && !seen {
			packet, by := c.Context < ContextSyscall, t.clears.caller
			if packet {
				by = Caller{}
			}
			t.noteDeleteSeen(s, by)
			t.notePacketDelete(s, packet)
		}
	}
}

// notePacketDelete notes that the data plane has made the delete of a key that waits for a reread. A clear to which its absence
// seems to belong does not end before that.
func (t *Table) notePacketDelete(s uint32, packet bool) {
	m := t.meta(s)
	if !packet {
		return
	}
	if m.flags |= flagPacketDelete; m.is(flagHeld) {
		m.flags |= flagDoubted
	}
}

// uncertain reports whether the content of the kernel may differ from the change that is about to be
// entered.
func (t *Table) uncertain(c *Change, m *meta) bool {
	switch {
	case m.is(flagUnversioned):
		return !m.live() // the key may have vanished after that
	case c.Context == ContextReread:
		// A write may reach the map after the time of its event, and after the read.
		return c.Time-m.seen <= timestampMargin
	case m.is(flagWritten), !t.ours(m.owner):
		// syncd may have written the record later.
		return true
	default:
		return c.Time < m.seen || (m.lastCPU() != c.CPU && c.Time-m.seen <= timestampMargin)
	}
}

// requestReread requests a reread of a record from the kernel map. The kernel's content has no meaning
// while the record is dirty, so the reread then waits for clearDirty.
func (t *Table) requestReread(s uint32) {
	m := t.meta(s)
	m.flags |= flagUncertain
	if !m.is(flagReread) {
		m.flags |= flagReread
		t.stats.PendingRereads++
	}
	if !m.is(flagDirty) {
		t.queueReread(s)
	}
}

// queueReread queues a record for TakeRereads unless it is queued.
func (t *Table) queueReread(s uint32) {
	m := t.meta(s)
	if !m.is(flagInRereads) {
		m.flags |= flagInRereads
		t.rereads.push(s)
		t.tx.changed = true
	}
}

// dropReread cancels the requested reread of a record.
func (t *Table) dropReread(m *meta) {
	if m.is(flagReread) {
		m.flags &^= flagReread
		t.stats.PendingRereads--
	}
}

// queueUnknownReread queues a key without a record for TakeRereads.
func (t *Table) queueUnknownReread(key []byte) {
	if t.unknownRereads.waiting()+len(key) > maxUnknownBytes {
		t.stats.RereadsDropped++
		return
	}
	t.unknownRereads.push(key)
	t.tx.changed = true
}
