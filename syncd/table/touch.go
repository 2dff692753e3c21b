package table

// Touch moves the records of all incarnations of a node, tombstones included, to the tail. Every reader
// therefore rereads them, and this node sends them in place of their owner. Touch looks at up to limit
// records. While it returns true, the caller calls it again with the same cursor. The first call needs a
// new cursor at position 0. Touch ignores records that move to the tail after the first call.
func (tx *Tx) Touch(node string, c *Cursor, limit int) (more bool) {
	t := tx.t
	for range limit {
		s := c.nextBounded()
		if s == 0 {
			return false
		}
		if s&compactBit != 0 {
			t.touchCompact(s, node)
		} else if t.owners.list[t.meta(s).owner].Node == node {
			t.moveTail(s)
		}
	}
	return true
}

// touchCompact moves a compact tombstone to the tail if the node owns it.
func (t *Table) touchCompact(number uint32, node string) {
	c, i := t.log.at(number)
	if t.owners.list[c.owners[i]].Node == node {
		t.moveTail(t.expandTombstone(t.hash(t.log.key(c, i)), number))
		t.finishChange()
	}
}
