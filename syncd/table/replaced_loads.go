package table

// replacedLoads has the content that the local map held, at start, for keys whose records other nodes have sent since. It
// exists from BeginLoad until Adopt is done. A record of another node replaces an unversioned record, because nothing shows
// which of them is newer. If a peer then sends a higher record of an earlier incarnation of this node, that content
// was written after both. The result does not depend on the order in which peers send the two records.
type replacedLoads struct {
	// of has the content by key, nil for a key that the map did not hold. It has no key that the data plane has changed
	// since.
	of map[string][]byte
	// bytes is the memory of the content, at most maxReplacedLoads.
	bytes int
}

const (
	// maxReplacedLoads limits the memory of replacedLoads in bytes. Above it, the content of further keys is forgotten.
	maxReplacedLoads = 4 << 20
	// replacedLoadBytes is the memory of an element besides key and value.
	replacedLoadBytes = 64
)

// begin makes r empty. From now on, note stores content.
func (r *replacedLoads) begin() { *r = replacedLoads{of: make(map[string][]byte)} }

// end removes all content.
func (r *replacedLoads) end() { *r = replacedLoads{} }

// note stores a copy of the content of a key unless it is known, or r has ended.
func (r *replacedLoads) note(key, value []byte) {
	size := len(key) + len(value) + replacedLoadBytes
	if _, known := r.of[string(key)]; known || r.of == nil || r.bytes+size > maxReplacedLoads {
		return
	}
	if value != nil {
		value = append([]byte{}, value...)
	}
	r.of[string(key)] = value
	r.bytes += size
}

// forget removes the content of a key.
func (r *replacedLoads) forget(key []byte) {
	if value, known := r.of[string(key)]; known {
		delete(r.of, string(key))
		r.bytes -= len(key) + len(value) + replacedLoadBytes
	}
}

// noteReplacedLoad notes the local content of a key before a record of another node replaces it. s is the slot of
// the key, 0 if it has no record.
func (t *Table) noteReplacedLoad(d *Delta, s uint32) {
	switch {
	case t.replaced.of == nil || t.ours(d.Owner):
	case s == 0:
		// A key that is absent from a new map, or from an LRU map, need not be deleted.
		if t.opt.SameMap && (!t.opt.LRU || t.opt.EvictionDeletes) && t.loading == nil {
			t.replaced.note(d.Key, nil)
		}
	case !t.meta(s).is(flagUnversioned | flagLoaded):
	case t.meta(s).live():
		t.replaced.note(d.Key, t.value(s))
	default:
		t.replaced.note(d.Key, nil) // it was deleted during the load
	}
}

// restoreReplacedLoad merges a delta of an earlier incarnation of this node that is above the record of another node. If
// the local map held other content than the delta, that content becomes the record. done is false if
// the ordinary merge applies.
func (t *Table) restoreReplacedLoad(d *Delta, s uint32, now int64) (done bool) {
	value, known := t.replaced.of[string(d.Key)]
	if !known || (value == nil) == d.Delete && (d.Delete || equalUnder(t.opt.Significant, value, d.Value)) {
		return false
	}
	t.replaced.forget(d.Key)
	t.markDirty(s) // the writer may have written the other node's record
	t.put(s, value, value == nil, now)
	m := t.meta(s)
	m.seen, m.cpu = max(m.seen, now), cpuNone
	t.stamp(s, d.Version+1, selfID)
	return true
}
