package table

// A new key changes in place soon after its creation (a TCP handshake), and no hook reports such a change.
// The table therefore requests a reread after 50 ms and then after pauses of growing length. It stops after
// the key has changed and three rereads in a row found no further change, or after the last pause. The
// duration of a handshake depends on the network.
const (
	// settleFirst is the first pause in nanoseconds.
	settleFirst = 50_000_000
	// settlePauses is the number of pauses. Each is twice as long as the one before: up to 6.4 s.
	settlePauses = 8
	// settleStable is the number of unchanged rereads after which a key is stable.
	settleStable = 3
)

// settling has the new keys that are reread until they are stable. The lock of the table protects it.
type settling struct {
	// pauses has one queue for each pause. All keys of a queue wait equally long, so it is ordered by time.
	pauses [settlePauses]fifo[settlingKey]
	// n is the number of keys in all queues, at most Options.SettleKeys.
	n int
}

// settlingKey is a key that waits for a reread.
type settlingKey struct {
	// due is the wall clock in nanoseconds of the reread.
	due int64
	// version is the version of the record when the key was queued.
	version Version
	// slot is the slot of the record when the key was queued. It may have another record by now.
	slot uint32
	// tag is the lower half of the key's hash. It detects that another key got the slot.
	tag uint16
	// unchanged is the number of rereads since the last change, or neverChanged before the first change.
	unchanged int8
}

// neverChanged is the value of settlingKey.unchanged for a key without a change since its creation.
const neverChanged = -1

// queueSettling queues a record for the reread after a pause. It only counts the key if Options.SettleKeys
// others wait, because following changes must not cost more than missing them.
func (t *Table) queueSettling(pause int, hash, s uint32, now int64, unchanged int8) {
	if pause == settlePauses || t.opt.SettleKeys == 0 {
		return
	}
	if t.settling.n >= t.opt.SettleKeys {
		t.stats.Unsettled++
		return
	}
	t.settling.n++
	t.settling.pauses[pause].push(settlingKey{now + settleFirst<<pause, t.meta(s).version, s, uint16(hash), unchanged})
}

// Settle requests rereads of the new keys of this node that are due, at most limit. It returns the wall
// clock in nanoseconds at which the next one is due, or 0 if no key waits.
func (tx *Tx) Settle(now int64, limit int) (next int64) {
	t := tx.t
	for pause := range t.settling.pauses {
		q := &t.settling.pauses[pause]
		for q.len() > 0 && q.peek().due <= now && limit > 0 {
			e := q.pop()
			t.settling.n--
			switch {
			case pause == 0:
			case t.meta(e.slot).version != e.version:
				e.unchanged = 0
			case e.unchanged != neverChanged:
				e.unchanged++
			}
			if t.stillSettling(&e) && e.unchanged < settleStable {
				limit--
				t.requestReread(e.slot)
				t.queueSettling(pause+1, uint32(e.tag), e.slot, now, e.unchanged)
			}
		}
		if q.len() > 0 && (next == 0 || q.peek().due < next) {
			next = q.peek().due
		}
	}
	return next
}

// stillSettling reports whether the slot still has the live record of the key, and this node owns it.
func (t *Table) stillSettling(e *settlingKey) bool {
	m := t.meta(e.slot)
	return !m.is(flagFree|flagUnversioned) && m.live() && t.ours(m.owner) && uint16(t.hash(t.key(e.slot))) == e.tag
}

// bytes returns the memory of the queues in bytes.
func (s *settling) bytes() (n uint64) {
	for i := range s.pauses {
		n += s.pauses[i].bytes(24)
	}
	return n
}
