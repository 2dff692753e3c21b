package table

// markFailed marks a record whose write failed and queues it for RequeueFailed. The record must be dirty.
func (t *Table) markFailed(s uint32) {
	m := t.meta(s)
	if !m.is(flagFailed) {
		m.flags |= flagFailed
		t.stats.Failed++
		t.owners.list[m.owner].digest.failed++
	}
	if !m.is(flagInFailures) {
		m.flags |= flagInFailures
		t.failures.push(s)
	}
	t.barrierFailed(s)
	t.tx.changed = true
}

// RequeueFailed requeues up to limit records whose write failed, oldest failure first, and returns their
// number. Displaced records are included. The records keep their positions, because no peer has sent them
// again.
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
	return n
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
		m.flags &^= flagEvicted | flagRedo
		return s
	}
	return 0
}
