package table

// SetMembers sets the nodes that membership has proven, other than this one: live, and left, which
// were live earlier. Before the first call no owner is a stranger, and all other owners are one
// holder.
func (tx *Tx) SetMembers(live, left []string) {
	t := tx.t
	o := &t.owners
	o.live, o.seen = make(map[string]bool, len(live)), make(map[string]bool, len(live)+len(left))
	for _, node := range left {
		o.seen[node] = true
	}
	former := o.holders
	o.holders = nil
	for _, node := range live {
		o.live[node], o.seen[node] = true, true
		if node != o.list[selfID].Node {
			o.holders = append(o.holders, &holder{node: node})
		}
	}
	for _, h := range append(former, &o.departed) {
		t.dropHand(h) // records may belong to another holder now
	}
	for i := range o.list {
		if w := &o.list[i]; !w.free() {
			o.place(w)
		}
	}
}

// place sets the holder of an owner, and whether it is a stranger.
func (o *owners) place(w *ownerInfo) {
	if w.ours {
		return
	}
	w.holder, w.stranger = &o.departed, o.live != nil && !o.seen[w.Node]
	for _, h := range o.holders {
		if h.node == w.Node {
			w.holder = h
		}
	}
}
