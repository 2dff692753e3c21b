package table

// markFailed marks a record whose write failed and queues it for RequeueFailed. The record must be dirty.
func (t *Table) markFailed(s uint32) {
	m := t.meta(s)
	if !m.is(flagFailed) {
		m.flags |= flagFailed
		t.stats.Failed++
	}
	t.markNotHeld(m)
	if !m.is(flagInFailures) {
		m.flags |= flagInFailures
		t.failures.push(s)
	}
	t.barrierFailed(s)
	t.tx.changed = true
}

// RequeueFailed requeues up to limit records whose write failed, oldest failure first, and returns their
// number. Displaced records are included. The records keep their positions, because no peer has sent them
// again. Each search for an entry to displace may examine all records again.
func (tx *Tx) RequeueFailed(limit int) int {
	t := tx.t
	n := 0
	for range t.failures.len() {
		if n == limit {
			break
		}
		s := t.failures.pop()
		if t.meta(s).is(flagFailed) {
			t.retries.push(s)
			tx.changed = true
			n++
		} else {
			t.meta(s).flags &^= flagInFailures
		}
	}
	t.restartVictimSearches()
	return n
}

// nextFailed returns the next record of withVictim or deferred whose write is still failed, or 0 if there is none.
// Like a retry, it stays marked as failed until it is written. It also stays in the queue failures, and may be in
// retries, so that a burst may have it twice. A record that was written since and then displaced waits for
// RequeueFailed like all displaced records.
func (t *Table) nextFailed(q *fifo[uint32]) uint32 {
	for q.len() > 0 {
		s := q.pop()
		if m := t.meta(s); m.flags&displaced&^flagDirty == flagFailed {
			t.markNotHeld(m) // the writer may stop before the write
			return s
		}
	}
	return 0
}

// nextRetry returns the next record that RequeueFailed queued and whose write is still failed, or 0 if
// there is none. The record stays marked as failed until it is written, so that a new writer finds it if
// the writer stops before that.
func (t *Table) nextRetry() uint32 {
	for t.retries.len() > 0 {
		s := t.retries.pop()
		m := t.meta(s)
		if !m.is(flagFailed) {
			m.flags &^= flagInFailures
			continue
		}
		t.failures.push(s)
		t.setFlags(m, flagEvicted|flagRedo, 0)
		return s
	}
	return 0
}
