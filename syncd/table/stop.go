package table

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"
)

// A Stop has the versions and owners of the records of a table that its node has stopped cleanly. If all nodes were stopped,
// no peer has the records. Adopt then restores the version and the owner of each entry that has not changed since, so that
// the owner finds out which of its entries have ended meanwhile, as if its peers had not been stopped.
//
// Restored versions are below those of all other records, except for AdoptedVersion and NamedVersion, and in the order of the original ones. A delete by the owner is
// just above the restored record. Entries without proof that they have not changed get Options.AdoptVersion, those that have
// changed the next one. Both are above all restored records and their deletes, so that such an entry stays on all nodes.

// StopEntrySize is the size of an element of Stop.Entries in bytes.
const StopEntrySize = 26

// RestoredVersions is Options.AdoptVersion of nodes that restore versions. All versions by a clock after 2006 are above it.
const RestoredVersions Version = 1 << 60

// minRestored is the lowest restored version. It is above AdoptedVersion.
const minRestored = AdoptedVersion + 1

// ErrStop is wrapped by the errors of Stop.Check.
var ErrStop = errors.New("invalid records of the last stop")

// Stop has hashes of the records of a table, for Options.Stop of the next incarnation. The zero value has none.
type Stop struct {
	// Seed is the secret seed of the hashes.
	Seed uint64
	// Owners has the owners to which Entries refer.
	Owners []Owner
	// Entries has StopEntrySize bytes for each record, in the order of the hashes of the keys: the hash of the key, the hash
	// of key and value, the restored version, and the index of the owner. Numbers are little-endian.
	Entries []byte
}

// stopEntry is a decoded element of Stop.Entries.
type stopEntry struct {
	key, content uint64
	version      Version
	owner        uint16
}

// at returns the element with an index.
func (s *Stop) at(i int) stopEntry {
	b := s.Entries[i*StopEntrySize:][:StopEntrySize]
	return stopEntry{
		key: binary.LittleEndian.Uint64(b), content: binary.LittleEndian.Uint64(b[8:]),
		version: Version(binary.LittleEndian.Uint64(b[16:])), owner: binary.LittleEndian.Uint16(b[24:]),
	}
}

// Len returns the number of records.
func (s *Stop) Len() int { return len(s.Entries) / StopEntrySize }

// Check returns an error that wraps ErrStop if s cannot be the result of Tx.Stop.
func (s *Stop) Check() error {
	if len(s.Entries)%StopEntrySize != 0 {
		return fmt.Errorf("read %d bytes of entries: %w", len(s.Entries), ErrStop)
	}
	for _, o := range s.Owners {
		if o.Node == "" {
			return fmt.Errorf("read owner without a name: %w", ErrStop)
		}
	}
	for i, last := 0, uint64(0); i < s.Len(); i++ {
		e := s.at(i)
		switch {
		case e.key < last:
			return fmt.Errorf("read entry %d, which is not in order: %w", i, ErrStop)
		case e.version < minRestored || e.version >= RestoredVersions:
			return fmt.Errorf("read entry %d with version %d: %w", i, e.version, ErrStop)
		case int(e.owner) >= len(s.Owners):
			return fmt.Errorf("read entry %d with owner %d of %d: %w", i, e.owner, len(s.Owners), ErrStop)
		}
		last = e.key
	}
	return nil
}

// find returns the record with a hash of the key. It finds none if several keys have that hash.
func (s *Stop) find(key uint64) (e stopEntry, found bool) {
	low, high := 0, s.Len()
	for low < high {
		if mid := (low + high) / 2; s.at(mid).key < key {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if low == s.Len() || s.at(low).key != key || low+1 < s.Len() && s.at(low+1).key == key {
		return stopEntry{}, false
	}
	return s.at(low), true
}

// hashStop returns the hashes of the key and of the content of a record. buf is scratch space, which is returned.
func (t *Table) hashStop(seed uint64, s uint32, buf []byte) (key, content uint64, _ []byte) {
	if t.opt.Meanings != nil {
		return t.hashStopMeanings(seed, s, buf)
	}
	buf = append(append(buf[:0], t.key(s)...), t.value(s)...)
	if mask := t.opt.Stable; mask != nil {
		for i, value := 0, buf[t.opt.KeySize:]; i < len(value); i++ {
			value[i] &= mask[i]
		}
	}
	return xxh3.HashSeed(buf[:t.opt.KeySize], seed), xxh3.HashSeed(buf, seed), buf
}

// hashStopKey returns the hash of the key of a record.
func (t *Table) hashStopKey(seed uint64, s uint32) uint64 {
	if t.opt.Meanings == nil {
		return xxh3.HashSeed(t.key(s), seed)
	}
	return xxh3.HashSeed(t.opt.Meanings.Append(nil, t.key(s), nil), seed)
}

// hashStopMeanings is hashStop for entries with numbers, which may have other meanings at the next start.
func (t *Table) hashStopMeanings(seed uint64, s uint32, buf []byte) (key, content uint64, _ []byte) {
	buf = t.opt.Meanings.Append(buf[:0], t.key(s), nil)
	key = xxh3.HashSeed(buf, seed)
	value := slices.Clone(t.value(s))
	for i := range t.opt.Stable {
		value[i] &= t.opt.Stable[i]
	}
	buf = t.opt.Meanings.Append(buf[:0], t.key(s), value)
	return key, xxh3.HashSeed(buf, seed), buf
}

// maxFound limits what changes can add to the version of an entry that a start has found, without a time of their own.
const maxFound = 1 << 20

// isFound reports whether a version is that of an entry that a start has found, or one above it without a time: a delete, or
// another value that a later start has found.
func isFound(v Version) bool { return v >= RestoredVersions && v < RestoredVersions+maxFound }

// hasNoTime reports whether a version is that of an adopted or restored record.
func (t *Table) hasNoTime(v Version) bool { return v <= t.opt.AdoptVersion || isFound(v) }

// restoredVersion returns the version with which a record is restored. It is not below RestoredVersions if the record
// cannot be restored.
func restoredVersion(v Version) Version {
	if v < RestoredVersions {
		return max(v, minRestored)
	}
	return v - RestoredVersions + minRestored
}

// OriginalVersion returns the version that a record had before it was restored. It is v if the record was not restored, and
// 0 if the time of the last change is not known.
func OriginalVersion(v Version) Version {
	switch {
	case v <= minRestored, isFound(v):
		return 0
	case v < RestoredVersions:
		return v - minRestored + RestoredVersions
	}
	return v
}

// isRestored reports whether a version is that of a restored record, or of a delete of one.
func (t *Table) isRestored(v Version) bool { return v >= minRestored && v < t.opt.AdoptVersion }

// changed returns the version that has the time of a record's last change: the version before the stop for a restored record.
func (t *Table) changed(v Version) Version {
	if t.isRestored(v) {
		return OriginalVersion(v)
	}
	return v
}

// IsRestored reports whether a version is that of a record that a node has restored, or of a delete of one.
func (tx *Tx) IsRestored(v Version) bool { return tx.t.isRestored(v) }

// Stop returns the records whose entries the kernel map holds. The caller calls it when capture, replication and the writer
// have ended. seed is a new secret. Records that are not adopted yet are those of Options.Stop.
func (tx *Tx) Stop(seed uint64) Stop {
	t := tx.t
	entries := make([]stopEntry, 0, t.stats.Live)
	out := Stop{Seed: seed}
	index := make(map[Owner]uint16)
	var buf []byte
	for _, list := range []uint32{order, unversioned} {
		for s := t.meta(list).next; s != list; s = t.meta(s).next {
			version, owner := t.stopped(s)
			if version >= RestoredVersions {
				continue
			}
			i, known := index[owner]
			if !known {
				i = uint16(len(out.Owners))
				index[owner], out.Owners = i, append(out.Owners, owner)
			}
			e := stopEntry{version: version, owner: i}
			e.key, e.content, buf = t.hashStop(seed, s, buf)
			if t.meta(s).is(flagHeld | flagUncertain) {
				e.content = ^e.content // the kernel map may lack the entry, or have another one: that is a change
			}
			entries = append(entries, e)
		}
	}
	out.encode(entries)
	return out
}

// stopped returns the version and the owner with which the next start restores a record. The version is not below
// RestoredVersions if the start cannot restore it.
func (t *Table) stopped(s uint32) (Version, Owner) {
	m := t.meta(s)
	switch {
	case !m.live() || m.is(flagDirty|flagNotHeld|flagEvicted|flagNamed) && !m.is(flagHeld):
		return RestoredVersions, Owner{}
	case m.is(flagUnversioned):
		return t.foundVersion(s)
	}
	// An entry that the last start has found is newer than all that were restored then. Its owner started then.
	v, owner := m.version, t.owners.list[m.owner].Owner
	if isFound(v) {
		v = max(v, Version(owner.Incarnation)+v-RestoredVersions)
	}
	return restoredVersion(v), owner
}

// encode sets Entries.
func (s *Stop) encode(entries []stopEntry) {
	slices.SortFunc(entries, func(a, b stopEntry) int { return cmp.Compare(a.key, b.key) })
	s.Entries = make([]byte, 0, len(entries)*StopEntrySize)
	for i := range entries {
		e := &entries[i]
		s.Entries = binary.LittleEndian.AppendUint64(s.Entries, e.key)
		s.Entries = binary.LittleEndian.AppendUint64(s.Entries, e.content)
		s.Entries = binary.LittleEndian.AppendUint64(s.Entries, uint64(e.version))
		s.Entries = binary.LittleEndian.AppendUint16(s.Entries, e.owner)
	}
}

// foundVersion returns the version and the owner with which an entry is adopted that the load has found: those of
// Options.Stop if its content has not changed since, or this node with Options.AdoptVersion, or with the next version if the
// content has changed.
func (t *Table) foundVersion(s uint32) (Version, Owner) {
	self := t.owners.list[selfID].Owner
	stop := &t.opt.Stop
	if len(stop.Entries) == 0 {
		return t.opt.AdoptVersion, self
	}
	key, content, buf := t.hashStop(stop.Seed, s, t.stopBuf)
	t.stopBuf = buf
	switch e, found := stop.find(key); {
	case !found:
		return t.opt.AdoptVersion, self
	case e.content != content:
		return t.opt.AdoptVersion + 1, self
	default:
		return e.version, stop.Owners[e.owner]
	}
}

// adoptFound makes an unversioned record one of this node, or restores a record of Options.Stop.
func (t *Table) adoptFound(s uint32) {
	v, owner := t.foundVersion(s)
	id := t.owners.intern(owner)
	if id == NoOwner {
		v, id = t.opt.AdoptVersion, selfID
	}
	t.stamp(s, v, id)
}

// mergeOverFound decides about a restored record, or a delete of one, of a key whose entry is not adopted yet. The sender may
// not have received what the load has found. If Options.Stop has the entry, the entry is adopted first, so that versions
// decide. Otherwise it may have changed. It then outlives a delete, and a record that the owner itself has not sent: ignore
// is true.
func (t *Table) mergeOverFound(d *Delta, s uint32, opt RemoteOptions) (ignore bool) {
	m := t.meta(s)
	if !m.is(flagUnversioned) || !m.live() || !t.isRestored(d.Version) || d.Expired {
		return false
	}
	if v, _ := t.foundVersion(s); v != t.opt.AdoptVersion || d.Delete {
		t.adoptFound(s)
		return false
	}
	owner := &t.owners.list[d.Owner]
	return !owner.ours && opt.Sender != 0 && t.owners.list[opt.Sender].Node != owner.Node
}
