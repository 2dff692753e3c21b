package table

// Meanings are those of numbers in the entries of a table. Each node assigns the numbers itself. A number means the same as long as a table
// has it. The table calls the methods under its lock, so they must not call the table. They must not keep or change the slices.
type Meanings interface {
	// Sum returns a hash of the meanings in an entry that is equal on all nodes.
	Sum(key, value []byte) uint64
	// Append appends bytes that identify an entry at this start and at later ones. value is nil for the key alone.
	Append(dst, key, value []byte) []byte
	// FromKernel replaces the ids in an entry of the kernel map by numbers. value may be nil.
	FromKernel(key, value []byte)
}

// Meanings returns Options.Meanings. It takes no lock.
func (t *Table) Meanings() Meanings { return t.opt.Meanings }

// WritesEntriesOf reports whether entries of an owner in the local map are those of the load balancer of this node, and not copies that syncd
// has written. Those of an earlier incarnation are copies unless the map is the one that it has replicated.
func (t *Table) WritesEntriesOf(o Owner) bool {
	return o.Node == t.opt.Self.Node && (t.opt.SameMap || o.Incarnation == t.opt.Self.Incarnation)
}

// Rewrite makes the writer write a live record again: its entry in the kernel map means something else now. The record stays as it is, so
// that reads of the entry prove nothing until then.
func (tx *Tx) Rewrite(r Ref) {
	t := tx.t
	s := uint32(r)
	if s < firstSlot || s >= t.allocated {
		return
	}
	if m := t.meta(s); m.is(flagFree|flagUnversioned) || !m.live() || m.is(flagHeld) {
		return // no entry, or one that the load balancer has deleted
	}
	t.markDirty(s)
	t.moveTail(s)
}
