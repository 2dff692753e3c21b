package table

import (
	"bytes"
	"slices"
)

// SetDigestKey replaces Options.DigestKey and recomputes all digests. This takes about 0.2 s for a million
// records, during which the table is locked. It cancels an audit in progress; the next call of Audit starts
// a new one. It does nothing if the key is the current one. The table keeps a copy of the key.
func (tx *Tx) SetDigestKey(key []byte) {
	t := tx.t
	if bytes.Equal(t.opt.DigestKey, key) {
		return
	}
	t.opt.DigestKey = slices.Clone(key)
	d := &t.digester
	d.keyMask, d.masked, d.pairs, d.variants = nil, nil, nil, nil
	d.audit = audit{}
	d.init(&t.opt)
	for i := range t.owners.list {
		o := &t.owners.list[i]
		if o.free() {
			continue
		}
		o.hash, o.digest = d.hashOwner(o.Owner), d.forNode(o.Node)
		o.digest.ids++
	}
	d.slot = 0
	for s := firstSlot; s < t.allocated; s++ {
		m := t.meta(s)
		if m.is(flagFree) {
			continue
		}
		t.addToDigest(s)
		t.owners.list[m.owner].digest.countUnheld(m, 1)
	}
}
