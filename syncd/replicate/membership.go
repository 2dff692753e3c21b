package replicate

import (
	"maps"
	"slices"

	"mapsync/syncd/table"
)

// view is the membership of one moment. It does not change; streams read it
// while they hold a table's lock, so that what is moved to a tail after a new
// view is met under that view.
type view struct {
	epoch uint64
	self  string
	live  map[string]Peer // other than self
	names []string        // of all live nodes with self, lowest first
}

func newView(epoch uint64, self string, live []Peer) *view {
	v := &view{epoch: epoch, self: self, live: make(map[string]Peer, len(live))}
	for _, p := range live {
		// Of two lives of one node the later counts.
		if old, ok := v.live[p.Node]; p.Node != self && (!ok || old.Incarnation < p.Incarnation) {
			v.live[p.Node] = p
		}
	}
	v.names = slices.Sorted(maps.Keys(v.live))
	at, _ := slices.BinarySearch(v.names, self)
	v.names = slices.Insert(v.names, at, self)
	return v
}

// covers reports whether this node streams the records of an owner to the
// target although they are not its own.
//
// What an earlier life of the target owned, everyone tells it: any one of them
// may be the only one that received the last of it.
//
// What an owner that is gone left behind, everyone tells the survivor (the live
// node with the lowest name), and the survivor tells everyone. So each record
// that anyone has reaches all, and all but the survivor receive it once.
func (v *view) covers(owner, target string) bool {
	if _, live := v.live[owner]; owner == v.self || live || owner == target {
		return owner == target
	}
	survivor := v.names[0]
	return survivor == v.self || survivor == target
}

// serves reports whether this node streams the records of an owner to a target.
func (v *view) serves(owner, target table.Owner) bool {
	if owner == target {
		return false
	}
	return owner.Node == v.self || v.covers(owner.Node, target.Node)
}

// takesOver reports whether this view makes the node responsible for records of
// the owner that a stream may have passed under the old view. A target that was
// not there then walks from the beginning.
func (v *view) takesOver(old *view, owner string) bool {
	for target, p := range v.live {
		was, ok := old.live[target]
		if ok && was.Incarnation == p.Incarnation && v.covers(owner, target) && !old.covers(owner, target) {
			return true
		}
	}
	return false
}
