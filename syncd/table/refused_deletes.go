package table

import "slices"

// refusals has deletes of unverified owners that did not replace a live record of another node. See unverified_owners.go.
// Table.mu protects it.
type refusals struct {
	// of has the highest refused delete of each key, at most maxRefusals.
	of map[string]refusal
	// checked is the time in nanoseconds of the last acceptRefused that examined the keys.
	checked int64
}

// refusal is a refused delete. Times are in nanoseconds.
type refusal struct {
	// version is that of the delete. note replaces it only with a higher one of the same key, or with the same one if the
	// owner is not lower.
	version Version
	// owner is that of the delete. It is a name and not an id, because the table may reuse ids.
	owner Owner
	// at is the time when the delete arrived.
	at int64
	// gone is the time since which the key has no live record; 0: it has one.
	gone int64
}

const (
	// maxRefusals limits the number of stored deletes. Above it, the table forgets an arbitrary one.
	maxRefusals = 4096
	// refusalPause is the time in nanoseconds between two examinations of the keys.
	refusalPause = 100_000_000
)

// note stores a refused delete unless a higher one of the same key is stored.
func (x *refusals) note(d *Delta, from Owner, now int64) {
	old, known := x.of[string(d.Key)]
	switch {
	case known && (old.version > d.Version || (old.version == d.Version && old.owner.Compare(from) > 0)):
		return
	case !known && len(x.of) >= maxRefusals:
		for key := range x.of {
			delete(x.of, key)
			break
		}
	}
	x.put(d.Key, refusal{version: d.Version, owner: from, at: now})
}

// put stores a refused delete.
func (x *refusals) put(key []byte, r refusal) {
	if x.of == nil {
		x.of = make(map[string]refusal)
	}
	x.of[string(key)] = r
}

// bytes returns the memory of the stored deletes in bytes.
func (x *refusals) bytes(keySize int) uint64 {
	const each = 128 // includes the entry in the map
	return uint64(len(x.of)) * uint64(each+keySize)
}

// acceptRefused merges the refused deletes of keys without a live record. It waits for
// Options.TombstoneGrace: until then the owner of the defended record may not have received its delete,
// and would defend its record against the unverified owner's tombstone.
func (t *Table) acceptRefused(now int64) {
	x := &t.refusals
	if len(x.of) == 0 || (now >= x.checked && now-x.checked < refusalPause) {
		return
	}
	x.checked = now
	var due []string
	for key, r := range x.of {
		if t.reviewRefusal(key, &r, now) {
			due = append(due, key)
		}
	}
	slices.Sort(due)
	for _, key := range due {
		r := x.of[key]
		delete(x.of, key)
		if o := t.owners.intern(r.owner); o != NoOwner {
			t.remote(&Delta{Key: []byte(key), Version: r.version, Owner: o, Delete: true}, now, RemoteOptions{})
			t.finishChange()
		}
	}
}

// reviewRefusal updates the state of a refused delete and reports whether the table is to accept it now.
// It removes a delete that is older than Options.TombstoneTTL, or below the record of its key.
func (t *Table) reviewRefusal(key string, r *refusal, now int64) (due bool) {
	var m Record
	live := t.tx.Get([]byte(key), &m) && !m.Delete
	was := r.gone
	switch {
	case now-r.at >= int64(t.opt.TombstoneTTL), m.Version > r.version:
		delete(t.refusals.of, key)
		return false
	case live || m.Expired:
		r.gone = 0
	case r.gone == 0:
		r.gone = now
	}
	if r.gone != was {
		t.refusals.of[key] = *r
	}
	return r.gone != 0 && now-r.gone >= int64(t.opt.TombstoneGrace)
}
