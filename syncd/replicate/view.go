package replicate

import (
	"hash/fnv"
	"maps"
	"slices"

	"mapsync/syncd/table"
)

// view is the membership at one moment. It does not change, so streams read it while they hold a
// table's lock.
//
// Two nodes with different views disagree on which records are orphaned, and possibly on the
// fallback sender. That state is temporary, and comparisons of orphaned records are inconclusive
// meanwhile.
type view struct {
	// self is this node.
	self table.Owner
	// live are the live nodes other than self, by name.
	live map[string]Peer
	// departures is the number of nodes that have left since this node started. While it is
	// unchanged, no record has become orphaned. It never decreases.
	departures uint64
	// members is a hash of the names of the live nodes including self. Nodes with the same value
	// agree on which records are orphaned. Incarnations do not count: a node that restarts does not
	// change which records are orphaned.
	members uint64
}

// newView returns the view that follows old; nil for the first one. self is not in the result's
// live, even if live has it. live is not kept.
func newView(old *view, self table.Owner, live []Peer) *view {
	v := &view{self: self, live: make(map[string]Peer, len(live))}
	for _, p := range live {
		// Of two incarnations of a node, the later one counts.
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
	// The zero byte separates the names: "a" and "bc" differ from "ab" and "c".
	for _, name := range slices.Insert(names, at, self.Node) {
		_, _ = h.Write(append([]byte(name), 0)) // Write of a hash never fails
	}
	v.members = h.Sum64()
	return v
}

// orphaned reports whether the records of a node are orphaned. The records of earlier incarnations
// of a live node are not orphaned: that node still owns them.
func (v *view) orphaned(node string) bool {
	_, live := v.live[node]
	return !live && node != v.self.Node
}

// names returns the names of the live nodes other than this one, in no order.
func (v *view) names() []string {
	return slices.Collect(maps.Keys(v.live))
}
