package table

import (
	"bytes"
	"slices"
)

// SetDigestKey replaces Options.DigestKey, and makes all digests anew with it: about
// 0.2 s for a million records, during which the table is locked. An audit that is under way begins
// anew. It does nothing if the key is the one in use.
func (tx *Tx) SetDigestKey(key []byte) {
	t := tx.t
	if bytes.Equal(t.opt.DigestKey, key) {
		return
	}
	t.opt.DigestKey = slices.Clone(key)
	d := &t.digester
	d.keyMask, d.masked, d.pairs = nil, nil, nil
	d.audit = audit{}
	d.init(&t.opt)
	for i := range t.owners.list {
		o := &t.owners.list[i]
		if o.free() {
			continue
		}
		o.hash, o.digest = d.owner(o.Owner), d.of(o.Node)
	}
	d.slot = 0
	for s := firstSlot; s < t.allocated; s++ {
		if !t.meta(s).is(flagFree) {
			t.join(s)
		}
	}
}
