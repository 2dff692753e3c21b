package table

// replacedLoads has the local content of keys whose records other nodes have replaced since the start. It exists from
// BeginLoad until Adopt is done, also if another map replaces the loaded one meanwhile. A record of another node replaces an unversioned record, because nothing shows which of
// them is newer. If a peer then sends a higher record of an earlier incarnation of this node, the local content was written
// after both, so that the result does not depend on the order in which peers send the two.
//
// An event that reports the delete of a key without a record is noted, too: events report only deletes that succeeded, so
// that the map held the key. An absence in the loaded map is not noted: the load may have skipped the key. Convert forgets
// all content.
type replacedLoads struct {
	// of has the content by key.
	of map[string]replacedLoad
	// bytes is the memory of the content, at most maxReplacedLoads.
	bytes int
}

// replacedLoad is the content of a key.
type replacedLoad struct {
	// value is nil if the key was deleted after the start.
	value []byte
	// loaded is true if the load has found the value, and the data plane has not changed it since.
	loaded bool
}

const (
	// maxReplacedLoads limits the memory of replacedLoads in bytes. Above it, the content of further keys is forgotten.
	maxReplacedLoads = 4 << 20
	// replacedLoadBytes is the memory of an element besides key and value.
	replacedLoadBytes = 96
)

// begin makes r empty. From now on, note stores content.
func (r *replacedLoads) begin() { *r = replacedLoads{of: make(map[string]replacedLoad)} }

// end removes all content.
func (r *replacedLoads) end() { *r = replacedLoads{} }

// note stores a copy of the content of a key, unless r has ended.
func (r *replacedLoads) note(key, value []byte, loaded bool) {
	r.forget(key)
	size := len(key) + len(value) + replacedLoadBytes
	if r.of == nil || r.bytes+size > maxReplacedLoads {
		return
	}
	if value != nil {
		value = append([]byte{}, value...)
	}
	r.of[string(key)] = replacedLoad{value, loaded}
	r.bytes += size
}

// change replaces the content of a key, if it is known, with that of a change by the data plane or a delete by bpf(2).
func (r *replacedLoads) change(key, value []byte) {
	if _, known := r.of[string(key)]; known {
		r.note(key, value, false)
	}
}

// deleted reports whether an event has reported the delete of a key, and the key has no record of a later change.
func (r *replacedLoads) deleted(key []byte) bool {
	old, known := r.of[string(key)]
	return known && old.value == nil
}

// forget removes the content of a key.
func (r *replacedLoads) forget(key []byte) {
	if old, known := r.of[string(key)]; known {
		delete(r.of, string(key))
		r.bytes -= len(key) + len(old.value) + replacedLoadBytes
	}
}

// noteDeleted notes an event of the delete of a key without a record of this incarnation. Until the end of a drain, a delete by bpf(2)
// shows no intention.
func (t *Table) noteDeleted(c *Change) {
	if c.Context < ContextSyscall || c.Context == ContextSyscall && !t.drained() && c.Time >= t.owners.returnedAt {
		t.replaced.note(c.Key, nil, false)
	}
}

// noteReplacedLoad notes the local content of a key before a newer record of another node replaces it. It reports
// whether that record has the same content and keeps flagLoaded: a copy is not needed then.
func (t *Table) noteReplacedLoad(d *Delta, s uint32) (same bool) {
	m := t.meta(s)
	if t.replaced.of == nil || t.ours(d.Owner) || m.is(flagExpired) || (m.owner != selfID && !m.is(flagLoaded)) {
		return false
	}
	if !m.live() {
		if !m.is(flagUnversioned) || !t.drained() { // otherwise noteDeleted has decided
			t.replaced.note(d.Key, nil, false)
		}
		return false
	}
	if m.is(flagLoaded) && !d.Delete && t.equalSignificant(s, d.Value) {
		t.replaced.forget(d.Key)
		return true
	}
	t.replaced.note(d.Key, t.value(s), m.is(flagLoaded))
	return false
}

// restoreReplacedLoad merges a delta of an earlier incarnation of this node that is above the record of another node, like
// mergeOwn with the content that the record has replaced. done is false if that is not known.
func (t *Table) restoreReplacedLoad(d *Delta, s uint32, now int64) (done bool) {
	m := t.meta(s)
	old, known := t.replaced.of[string(d.Key)]
	if t.replaced.of != nil && m.live() && m.is(flagLoaded) {
		old, known = replacedLoad{append([]byte{}, t.value(s)...), true}, true
	}
	// The table defends the record of a live node against records that were made after the start of this
	// incarnation.
	if !known || (t.owners.live[t.owners.list[m.owner].Node] && uint64(d.Version) > t.opt.Self.Incarnation) {
		return false
	}
	deleted := old.value == nil
	t.replaced.forget(d.Key)
	t.markDirty(s) // the writer may have written the other node's record
	t.put(s, old.value, deleted, now)
	if old.loaded {
		m.flags |= flagLoaded
	}
	if deleted == d.Delete && (deleted || t.equalSignificant(s, d.Value)) && (t.sameMap(d.Key) || old.loaded) {
		t.stampDelta(s, d, now)
		return true
	}
	m.seen = max(m.seen, now)
	m.setCPU(cpuNone)
	t.stamp(s, d.Version+1, selfID)
	return true
}
