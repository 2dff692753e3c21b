package table

// DigestOf returns the contribution of a key's record to the digest of its owner's node, and the bucket. It
// returns false if the key has no live, versioned record.
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
	return tx.Owner(rec.Owner).Node, Digest{Sum: h.sum, VersionSum: h.version, Live: 1}, int(h.bucket % DigestBuckets), true
}

// VersionSumOf returns the contribution of a record with an owner and a version to Digest.VersionSum. The
// table need not have such a record.
func (tx *Tx) VersionSumOf(o Owner, v Version) uint64 {
	d := &tx.t.digester
	return fold(uint64(v)^d.versionSeed, d.hashOwner(o))
}
