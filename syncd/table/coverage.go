package table

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"

	"github.com/zeebo/xxh3"
)

// keyHashes is a set of keys of which only the compared bits count: the index of an interface may be unknown, or
// change. It stores hashes with a random seed, because attackers choose the keys of flows.
type keyHashes struct {
	// mask is Options.ComparedKey, nil: all bits.
	mask []byte
	// seed is not 0 once the set is in use.
	seed uint64
	// masked is scratch space for a masked key.
	masked []byte
	// of has the hashes.
	of map[uint64]struct{}
}

// init makes the set ready for keys of a table. It is empty afterwards. A seed of 0 selects a random one.
func (k *keyHashes) init(o *Options, seed uint64) {
	for seed == 0 {
		seed = rand.Uint64()
	}
	*k = keyHashes{mask: o.ComparedKey, seed: seed, masked: make([]byte, o.KeySize), of: make(map[uint64]struct{})}
}

// hash returns the hash of the compared bits of a key, KeySize bytes.
func (k *keyHashes) hash(key []byte) uint64 {
	if k.mask != nil {
		for i := range k.masked {
			k.masked[i] = key[i] & k.mask[i]
		}
		key = k.masked
	}
	return xxh3.HashSeed(key, k.seed)
}

// maxCoveredKeys is the number of keys up to which a Coverage is exact.
const maxCoveredKeys = 4096

// Coverage is a set of keys about which an answer of a peer proves nothing, although the answer lacks
// them: keys that the peer has and cannot send, or that this node cannot convert at present.
//
// Up to maxCoveredKeys keys, the set is exact. A further key covers its whole bucket, which is one of 1,024.
// The zero value has no key. Reset makes it ready for Add. A Coverage is not safe for concurrent use.
type Coverage struct {
	// keys has the first keys, at most maxCoveredKeys.
	keys keyHashes
	// buckets has the buckets of further keys, by the upper bits of the hash.
	buckets BucketSet
}

// Reset removes all keys, and makes the set ready for keys of a table.
func (c *Coverage) Reset(t *Table) {
	c.keys.init(&t.opt, 0)
	c.buckets = BucketSet{}
}

// Add adds a key, KeySize bytes, of which only the compared bits count.
func (c *Coverage) Add(key []byte) {
	h := c.keys.hash(key)
	if len(c.keys.of) < maxCoveredKeys {
		c.keys.of[h] = struct{}{}
	} else {
		c.buckets.Add(int(h >> bucketShift))
	}
}

// Has reports whether the set has a key, KeySize bytes.
func (c *Coverage) Has(key []byte) bool {
	if len(c.keys.of) == 0 {
		return false
	}
	h := c.keys.hash(key)
	_, found := c.keys.of[h]
	return found || c.buckets.Has(int(h>>bucketShift))
}

// maxUnheld is the highest number of keys in unheld.
const maxUnheld = 1024

// Unheld is a set of keys of records that earlier incarnations of this node own and that this node has not
// merged, although a peer has sent or named them. The kernel map has never held their entries, so the absence
// of such an entry is no delete, also at the next start. It has no key if Hashes is empty.
type Unheld struct {
	// Seed is the seed of Hashes.
	Seed uint64
	// Hashes has 8 bytes for each key.
	Hashes []byte
	// Overflow reports that the set lacks keys, of which the number or the layout is unknown.
	Overflow bool
}

// unheld is the set behind Unheld. The lock of the table protects it.
type unheld struct {
	keyHashes
	// versions has the highest version of the records of each hash that this incarnation has filtered. A hash that an earlier
	// one has stored has none.
	versions map[uint64]Version
	// merged has the keys of keyHashes whose records the table has merged since, each with the position from which on the map
	// has their entries: see SetApplied. The map content of the start is still no evidence for them.
	merged map[uint64]uint64
	// waiting is the highest position in merged that the map has not reached. 0: none.
	waiting uint64
	// overflow is Unheld.Overflow.
	overflow bool
	// otherLayout reports that peers may hold records of this node whose keys do not fit the layout of the table.
	otherLayout bool
	// serial counts the changes of the set.
	serial uint64
}

// load makes the set equal to one that Unheld has returned earlier.
func (u *unheld) load(o *Options) {
	u.overflow = o.Unheld.Overflow
	if len(o.Unheld.Hashes) == 0 {
		return
	}
	u.init(o, o.Unheld.Seed)
	u.versions, u.merged = make(map[uint64]Version), make(map[uint64]uint64)
	for rest := o.Unheld.Hashes; len(rest) >= 8 && len(u.of) < maxUnheld; rest = rest[8:] {
		u.of[binary.LittleEndian.Uint64(rest)] = struct{}{}
	}
}

// has reports whether the map may never have held a key when this incarnation started.
func (u *unheld) has(key []byte) bool {
	if u.overflow || len(u.of) == 0 {
		return u.overflow
	}
	_, found := u.of[u.hash(key)]
	return found
}

// some reports whether the set has keys whose records the table has not merged.
func (u *unheld) some() bool { return u.overflow || len(u.of) > len(u.merged) }

// noteMerged notes that the table has merged a record of a key, and that the map has its content from a position on. A delete
// counts only if it is not older than the filtered record: the map has never held an entry for it.
func (u *unheld) noteMerged(d *Delta, position uint64) {
	if len(u.of) == len(u.merged) && u.waiting == 0 {
		return
	}
	h := u.hash(d.Key)
	if v := u.versions[h]; !d.Delete || v != 0 && d.Version >= v {
		u.setMerged(h, position)
	}
}

// noteChanged notes that the data plane of this node has changed the entry of a key.
func (u *unheld) noteChanged(key []byte) {
	if len(u.of) != len(u.merged) || u.waiting != 0 {
		u.setMerged(u.hash(key), 0)
	}
}

// setMerged notes that the map has the content of the table from a position on. The map content of the start is still no evidence.
func (u *unheld) setMerged(h, position uint64) {
	if _, found := u.of[h]; found {
		u.merged[h] = position
		u.waiting = max(u.waiting, position)
		u.serial++
	}
}

// noteApplied notes the position up to which the map has the content of the table.
func (u *unheld) noteApplied(position uint64) {
	if u.waiting > 0 && position >= u.waiting {
		u.waiting = 0
		u.serial++
	}
}

// NoteUnheld notes a key, KeySize bytes, and the version of a record of an earlier incarnation of this node that this node has
// not merged. Only the compared bits count. The map is evidence for the key if it has held the entry (see sameMap), the load has
// found the key, or this incarnation owns its record.
func (tx *Tx) NoteUnheld(key []byte, v Version) {
	var rec Record
	if tx.t.sameMap(key) || tx.Get(key, &rec) && rec.Owner == selfID {
		return
	}
	tx.t.addUnheld(key, v)
}

// NoteOtherLayout notes that a peer has a record of this node whose key does not fit the layout of the table. If the table is
// converted, the content of the map at start no longer counts as evidence.
func (tx *Tx) NoteOtherLayout() { tx.t.unheld.otherLayout = true }

// addUnheld adds a key to the unheld ones. v is the version of its record.
func (t *Table) addUnheld(key []byte, v Version) {
	u := &t.unheld
	if u.of == nil {
		u.init(&t.opt, 0)
		u.versions, u.merged = make(map[uint64]Version), make(map[uint64]uint64)
	}
	h := u.hash(key)
	_, found := u.of[h]
	_, merged := u.merged[h]
	if u.versions[h] != 0 {
		u.versions[h] = max(u.versions[h], v)
	}
	switch {
	case u.overflow || (found && !merged):
		return
	case !found && len(u.of) >= maxUnheld:
		u.overflow = true
	default:
		if !found {
			u.versions[h] = v
		}
		u.of[h] = struct{}{}
		delete(u.merged, h)
	}
	u.serial++
}

// UnheldSerial returns a number that changes with each change of the set of unheld keys, and whether the set
// has keys.
func (tx *Tx) UnheldSerial() (serial uint64, some bool) {
	u := &tx.t.unheld
	return u.serial, u.some()
}

// UnheldOverflow reports whether some unheld keys are unknown.
func (tx *Tx) UnheldOverflow() bool { return tx.t.unheld.overflow }

// ForgetUnheldOverflow forgets that unheld keys are unknown. The caller calls it once peers have sent all records of earlier
// incarnations of this node, and the table has merged them.
func (tx *Tx) ForgetUnheldOverflow() {
	u := &tx.t.unheld
	if u.overflow {
		u.overflow = false
		u.serial++
	}
}

// Unheld returns the unheld keys, for Options.Unheld of the next incarnation. The merged ones count until the map has them.
func (tx *Tx) Unheld() Unheld {
	u := &tx.t.unheld
	hashes := make([]uint64, 0, len(u.of))
	for h := range u.of {
		if position, merged := u.merged[h]; !merged || position > tx.t.applied {
			hashes = append(hashes, h)
		}
	}
	slices.Sort(hashes)
	out := Unheld{Seed: u.seed, Overflow: u.overflow}
	for _, h := range hashes {
		out.Hashes = binary.LittleEndian.AppendUint64(out.Hashes, h)
	}
	return out
}

// OwnNotHeld returns the number of live records of this node, all incarnations, that the kernel map has refused. A record for which
// Displace has selected a victim counts until it is written.
func (tx *Tx) OwnNotHeld() int {
	t := tx.t
	n := t.owners.list[selfID].digest.notHeld
	for s := range t.withVictim.all() {
		if m := t.meta(*s); m.live() && t.ours(m.owner) && m.flags&(flagFree|flagNotHeld|displaced)&^flagDirty == flagFailed {
			n++
		}
	}
	return n
}

// RecordsOf returns the number of live, versioned records of a node, all incarnations. Of these, failed is the number of those that
// the kernel map has refused or the writer has displaced, and evicted of those that it has evicted.
func (tx *Tx) RecordsOf(node string) (live, failed, evicted int) {
	if d := tx.t.digester.nodes[node]; d != nil {
		live, failed, evicted = d.live, d.notHeld, d.evicted
	}
	return live, failed, evicted
}

// foreign has the owners of keys that peers have and that this node has filtered, until Adopt has ended. The entry of
// such a key in the local map is not a new one. The lock of the table protects it.
type foreign struct {
	keyHashes
	// owners has the owner of each hash of keyHashes. Names do not change, and the table may reuse ids.
	owners map[uint64]Owner
}

// NoteOwner notes that another owner has a record of a key, KeySize bytes, which this node has filtered. If the local
// map has an entry of the key that is not adopted yet, the entry becomes a record of that owner, with NamedVersion.
// Any record of a peer wins over it. If exact is not set, only the compared bits count, and Adopt does it.
func (tx *Tx) NoteOwner(key []byte, o OwnerID, exact bool) {
	t := tx.t
	if t.stats.Unversioned == 0 || len(key) != t.opt.KeySize || t.ours(o) {
		return
	}
	if exact {
		if _, s := t.find(key); s != 0 && t.meta(s).is(flagUnversioned) && t.meta(s).live() {
			if !t.meta(s).is(flagLoaded) { // a loaded record keeps the content of the map: see restoreReplacedLoad
				t.replaced.note(key, t.value(s), false)
			}
			t.adoptFor(s, o)
		}
		return
	}
	f := &t.foreign
	if f.of == nil {
		f.init(&t.opt, 0)
		f.owners = make(map[uint64]Owner)
	}
	if len(f.owners) < maxCoveredKeys {
		f.owners[f.hash(key)] = t.owners.list[o].Owner
	}
}

// adoptFor makes an unversioned record a record of an owner. If that is this node, and the entry has not changed since the
// last stop, the record of that time is restored: see Options.Stop.
func (t *Table) adoptFor(s uint32, o OwnerID) {
	if o == selfID {
		t.adoptFound(s)
		return
	}
	t.stamp(s, NamedVersion, o)
	t.meta(s).flags |= flagNamed
}

// adopter returns the owner of an entry that Adopt adopts.
func (t *Table) adopter(key []byte) OwnerID {
	f := &t.foreign
	if len(f.owners) == 0 {
		return selfID
	}
	o, found := f.owners[f.hash(key)]
	if !found {
		return selfID
	}
	if id := t.owners.intern(o); id != NoOwner {
		return id
	}
	return selfID
}
