package table

import "bytes"

// A scan compares the whole kernel map with the table. It finds what no hook saw:
// what is in the map differs from the record, or is unknown; and what is in no entry
// of the map, but live in the table, is no longer there. Both become rereads like
// any other, so a scan decides nothing that a reread would not.

// scan is the state of the one that is under way.
type scan struct {
	on   bool
	met  []uint64 // a bit for each slot whose record the scan has met
	slot uint32   // where the search for those not met has got to
}

// BeginScan must come before the first entry is read. A scan that was not ended is
// begun anew.
func (tx *Tx) BeginScan() {
	t := tx.t
	s := &t.scan
	s.on, s.slot = true, firstSlot
	clear(s.met)
	if n := int(t.allocated/64) + 1; len(s.met) < n {
		s.met = make([]uint64, n+n/4)
	}
}

// Scanned enters one entry that the kernel map holds. c is as for a reread: its
// Context is ContextReread, its Op OpUpdate and its Time the one before the read.
func (tx *Tx) Scanned(c *Change) Outcome {
	t := tx.t
	t.stats.Scanned++
	if _, s := t.find(c.Key); s != 0 {
		t.met(s)
		if t.meta(s).is(flagDirty | flagDoubt) {
			return Ignored // it is about to be written or read again, whatever it was
		}
	}
	refreshed := t.stats.Refreshed
	o := tx.Local(c)
	if o == Stale || o == Accepted && t.stats.Refreshed == refreshed {
		t.stats.ScanFound++
	}
	return o
}

// ScannedAll enters many entries as Scanned does. Their keys and values stand one
// after the other; at is the time before they were read, r the reading, see Change.Read.
func (tx *Tx) ScannedAll(r *Reading, at int64, keys, values []byte) {
	t := tx.t
	ks, vs := t.opt.KeySize, t.opt.ValueSize
	c := Change{Time: at, Op: OpUpdate, Context: ContextReread, Read: r}
	var slots [WarmKeys]uint32
	for n := min(len(keys)/ks, len(values)/vs); n > 0; {
		lot := min(n, WarmKeys)
		t.guessAll(keys[:lot*ks], &slots)
		for _, s := range slots[:lot] {
			c.Key, c.Value = keys[:ks], values[:vs]
			keys, values = keys[ks:], values[vs:]
			if !t.agrees(s, &c) {
				tx.Scanned(&c)
			}
		}
		n -= lot
	}
}

// guessAll finds the slots that keys probably have, and reads them ahead as Warm does:
// but not their neighbours, since hardly any will move.
func (t *Table) guessAll(keys []byte, slots *[WarmKeys]uint32) {
	var hashes [WarmKeys]uint32
	size := t.opt.KeySize
	n := len(keys) / size
	var sum uint64
	for i := range n {
		hashes[i] = t.hash(keys[i*size:][:size])
		sum += uint64(t.index.first(hashes[i]).slot)
	}
	for i := range n {
		slots[i] = t.index.guess(hashes[i])
		sum += t.meta(slots[i]).seq + t.warmRecord(slots[i])
	}
	t.warmth += sum
}

// agrees is the short way for what a scan nearly always finds: a record that says just
// what the map holds. It reports false where there is more to say.
func (t *Table) agrees(s uint32, c *Change) bool {
	m := t.meta(s)
	if s < firstSlot || m.is(flagFree|flagTombstone|flagDirty|flagDoubt|flagEvicted|flagUntold) ||
		!bytes.Equal(t.key(s), c.Key) || !bytes.Equal(t.value(s), c.Value) {
		return false
	}
	t.met(s)
	m.witness(c)
	t.stats.Scanned++
	t.stats.LocalUnchanged++
	return true
}

// EndScan looks, up to limit records at a time, for live records that no entry was
// met for, and has their keys read again. It returns true while there is more to
// look at. To be called once every entry was Scanned.
func (tx *Tx) EndScan(limit int) (more bool) {
	t := tx.t
	s := &t.scan
	for ; s.on && s.slot < t.allocated && limit > 0; s.slot++ {
		limit--
		m := t.meta(s.slot)
		if m.is(flagEvicted) {
			t.queueEvicted(s.slot) // its owner may have left since
		}
		if m.is(flagFree|flagDirty|flagEvicted) || (!m.live() && !m.is(flagReleased)) || s.has(s.slot) {
			continue
		}
		t.stats.ScanFound++
		t.recheck(s.slot)
	}
	if s.on && s.slot >= t.allocated {
		s.on, t.unsure = false, false
	}
	return s.on
}

// met marks a record as one that the map holds, as far as the scan under way goes.
// What is written or seen while it runs is met, too: the scan may have passed its place.
func (t *Table) met(s uint32) {
	if !t.scan.on {
		return
	}
	for int(s/64) >= len(t.scan.met) {
		t.scan.met = append(t.scan.met, 0)
	}
	t.scan.met[s/64] |= 1 << (s % 64)
}

// has reports whether the scan has met a record.
func (c *scan) has(s uint32) bool {
	return int(s/64) < len(c.met) && c.met[s/64]&(1<<(s%64)) != 0
}
