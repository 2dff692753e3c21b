package table

// An audit recomputes the digests from the bytes of the table while changes continue. A digest that each
// change updates proves that two tables made the same changes. Only a digest that is computed from the
// bytes proves that the bytes are still intact. The audit stores its result as the digest. If it finds a
// flipped bit or a bug of syncd, peers therefore detect a difference.

// audit is the state of the current audit. The lock of the table protects it.
type audit struct {
	// on is true while an audit is in progress. Then every nodeDigest.audit is set.
	on bool
	// slot is the next slot to look at. nodeDigest.audit covers exactly the records in the slots below it.
	slot uint32
}

// Audit looks at up to limit records and returns true while there are more. The first call after one that
// returned false starts a new audit.
func (tx *Tx) Audit(limit int) (more bool) {
	t := tx.t
	d := &t.digester
	if !d.audit.on {
		d.beginAudit()
	}
	for ; d.audit.slot < t.allocated && limit > 0; d.audit.slot++ {
		limit--
		s := d.audit.slot
		m := t.meta(s)
		if m.is(flagFree) || !m.inDigest() {
			continue
		}
		d.slot = 0
		if o := &t.owners.list[m.owner]; o.digest.audit != nil {
			o.digest.audit.add(t.digestOf(s, m, o))
		}
	}
	d.slot = 0
	if d.audit.slot < t.allocated {
		return true
	}
	t.stats.Audits++
	t.stats.AuditFound += d.endAudit()
	return false
}

// beginAudit starts an audit at the first slot.
func (d *digester) beginAudit() {
	d.audit = audit{on: true, slot: firstSlot}
	for _, n := range d.nodes {
		n.audit = &digestSums{}
	}
}

// endAudit stores the computed sums as the digests and returns the number of buckets that differed.
func (d *digester) endAudit() (found uint64) {
	var kept, made Buckets
	for _, n := range d.nodes {
		n.copyTo(&kept)
		n.audit.copyTo(&made)
		for b := range kept {
			if kept[b] != made[b] {
				found++
			}
		}
		n.digestSums, n.audit = *n.audit, nil
	}
	d.audit = audit{}
	return found
}
