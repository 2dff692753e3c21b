package replicate

import (
	"hash/fnv"
	"maps"
	"slices"

	"mapsync/syncd/table"
)

// view is the membership of one moment. It does not change; streams read it
// while they hold a table's lock.
type view struct {
	self table.Owner
	live map[string]Peer // other than self
	// departures counts the nodes that have left since this node started. While it is the
	// same, no record has become orphaned.
	departures uint64
	// members stands for the names of the live nodes, self included: nodes with the same
	// value agree about which records are orphaned.
	members uint64
}

// newView returns the view that follows on another one, nil if it is the first.
func newView(old *view, self table.Owner, live []Peer) *view {
	v := &view{self: self, live: make(map[string]Peer, len(live))}
	for _, p := range live {
		// Of two lives of one node the later counts.
		if old, ok := v.live[p.Node]; p.Node != self.Node && (!ok || old.Incarnation < p.Incarnation) {
			v.live[p.Node] = p
		}
	}
	if old != nil {
		v.departures = old.departures
		for node := range old.live {
			if _, ok := v.live[node]; !ok {
				v.departures++
			}
		}
	}
	names := slices.Sorted(maps.Keys(v.live))
	at, _ := slices.BinarySearch(names, self.Node)
	h := fnv.New64a()
	for _, name := range slices.Insert(names, at, self.Node) {
		_, _ = h.Write(append([]byte(name), 0)) // it never fails
	}
	v.members = h.Sum64()
	return v
}

// orphaned reports whether a node's records are orphaned.
func (v *view) orphaned(node string) bool {
	_, live := v.live[node]
	return !live && node != v.self.Node
}

// before orders nodes by their start: the earlier one is preferred as the fallback sender,
// so that a node that joins does not take over.
func before(a, b table.Owner) bool {
	if a.Incarnation != b.Incarnation {
		return a.Incarnation < b.Incarnation
	}
	return a.Node < b.Node
}

// names returns the names of the live nodes other than this one.
func (v *view) names() []string {
	return slices.Collect(maps.Keys(v.live))
}
