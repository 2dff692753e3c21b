package table

// An audit makes the digests anew from the bytes that the table holds, while changes go
// on. A digest that is kept with each change proves that the same changes were made;
// only one that is made from the bytes proves that they are still there. What the
// audit finds, be it a flipped bit or a mistake of this program, becomes the digest,
// and so a difference that peers see.

// audit is the state of the one that is under way.
type audit struct {
	on   bool
	slot uint32 // those below are in nodeDigest.audit
}

// Audit looks at up to limit records and returns true while there are more. An audit
// begins with the first call after one that returned false.
func (tx *Tx) Audit(limit int) (more bool) {
	t := tx.t
	d := &t.digester
	if !d.audit.on {
		d.begin()
	}
	for ; d.audit.slot < t.allocated && limit > 0; d.audit.slot++ {
		limit--
		s := d.audit.slot
		m := t.meta(s)
		if m.is(flagFree) || !m.digested() {
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
	t.stats.AuditFound += d.end()
	return false
}

func (d *digester) begin() {
	d.audit = audit{on: true, slot: firstSlot}
	for _, n := range d.nodes {
		n.audit = &counted{}
	}
}

// end makes what was found the digests, and returns how many buckets were others.
func (d *digester) end() (found uint64) {
	var kept, made Buckets
	for _, n := range d.nodes {
		n.copyTo(&kept)
		n.audit.copyTo(&made)
		for b := range kept {
			if kept[b] != made[b] {
				found++
			}
		}
		n.counted, n.audit = *n.audit, nil
	}
	d.audit = audit{}
	return found
}
