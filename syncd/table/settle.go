package table

// A new key changes in place soon after it appears (a TCP handshake), and no hook
// sees that. It is read again after 50 ms and then after ever longer pauses,
// until it has changed and then three readings in a row bring no further change,
// or the last pause is over: how long a handshake takes is up to the network.
const (
	settleFirst  = 50_000_000 // ns
	settlePauses = 8          // each twice as long as the one before: up to 6.4 s
	settleQuiet  = 3          // readings
)

// settling queues the new keys by the pause that they are in. Within a queue all
// wait equally long, so it is in the order of time.
type settling struct {
	pauses [settlePauses]fifo[settler]
	n      int
}

// settler is a key that is to be read again.
type settler struct {
	due     int64 // wall clock, ns
	version Version
	slot    uint32
	tag     uint16 // of the key's hash: another key may have got the slot
	quiet   int8   // readings since its last change; neverChanged before the first
}

const neverChanged = -1

// settleLater queues a record for the reading after a pause. Too many at a time are not
// followed, and counted: to follow changes must not cost more than to lose them.
func (t *Table) settleLater(pause int, hash, s uint32, now int64, quiet int8) {
	if pause == settlePauses || t.opt.SettleKeys == 0 {
		return
	}
	if t.settling.n >= t.opt.SettleKeys {
		t.stats.Unsettled++
		return
	}
	t.settling.n++
	t.settling.pauses[pause].push(settler{now + settleFirst<<pause, t.meta(s).version, s, uint16(hash), quiet})
}

// Settle queues rechecks for new keys of this node that are due, up to limit. It
// returns when the next one is due, in ns of the wall clock, or 0 if none waits.
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
				e.quiet = 0
			case e.quiet != neverChanged:
				e.quiet++
			}
			if t.follows(&e) && e.quiet < settleQuiet {
				limit--
				t.recheck(e.slot)
				t.settleLater(pause+1, uint32(e.tag), e.slot, now, e.quiet)
			}
		}
		if q.len() > 0 && (next == 0 || q.peek().due < next) {
			next = q.peek().due
		}
	}
	return next
}

// follows reports whether a slot still holds the live record of the key, and this node owns it.
func (t *Table) follows(e *settler) bool {
	m := t.meta(e.slot)
	return !m.is(flagFree|flagUnversioned) && m.live() && t.ours(m.owner) && uint16(t.hash(t.key(e.slot))) == e.tag
}

func (s *settling) bytes() (n uint64) {
	for i := range s.pauses {
		n += s.pauses[i].bytes(24)
	}
	return n
}
