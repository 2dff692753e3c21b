package table

// DigestOf returns what the record of a key adds to the digest of the node that owns it, and
// in which part. It returns false if the key has no live, versioned record.
func (tx *Tx) DigestOf(key []byte) (node string, g Digest, bucket int, ok bool) {
	t := tx.t
	var rec Record
	if !tx.Get(key, &rec) || rec.Version == 0 || rec.Delete {
		return "", g, 0, false
	}
	m := t.meta(uint32(rec.Ref))
	t.digester.slot = 0
	h := t.digestOf(uint32(rec.Ref), m, &t.owners.list[m.owner])
	t.digester.slot = 0
	return tx.Owner(rec.Owner).Node, Digest{Sum: h.sum, Loose: h.loose, Live: 1}, int(h.bucket % DigestBuckets), true
}

// LooseOf returns what a record of an owner and version adds to Digest.Loose, whether or not
// the table holds it.
func (tx *Tx) LooseOf(o Owner, v Version) uint64 {
	d := &tx.t.digester
	return fold(uint64(v)^d.versionSeed, d.owner(o))
}
