package table

// SetMembers sets the nodes, other than this one, that membership has proven. live nodes are in the
// cluster; left nodes were in it earlier. Before the first call the table treats no owner as a stranger,
// and all other owners form one group. The slices are borrowed for the call.
func (tx *Tx) SetMembers(live, left []string) {
	t := tx.t
	o := &t.owners
	o.live, o.seen = make(map[string]bool, len(live)), make(map[string]bool, len(live)+len(left))
	for _, node := range left {
		o.seen[node] = true
	}
	former := o.groups
	o.groups = nil
	for _, node := range live {
		o.live[node], o.seen[node] = true, true
		if node != o.list[selfID].Node {
			o.groups = append(o.groups, &ownerGroup{node: node})
		}
	}
	for _, h := range append(former, &o.otherOwners) {
		t.closeVictimCursor(h) // records may belong to another group now
	}
	for i := range o.list {
		if w := &o.list[i]; !w.free() {
			o.assignGroup(w)
		}
	}
}

// assignGroup sets the group of an owner, and whether it is a stranger. It does nothing for owners of this
// node.
func (o *owners) assignGroup(w *ownerInfo) {
	if w.ours {
		return
	}
	w.group, w.stranger = &o.otherOwners, o.live != nil && !o.seen[w.Node]
	for _, h := range o.groups {
		if h.node == w.Node {
			w.group = h
		}
	}
}
