package replicate

import (
	"maps"

	"mapsync/syncd/table"
)

// Access is the set of nodes that may read and write one map. A nil function allows all nodes.
type Access struct {
	// Read reports whether a node may receive this node's records.
	Read func(node string) bool
	// Write reports whether this node accepts the records of a node.
	Write func(node string) bool
}

// reads and writes report whether a node may read and write the map.
func (a *Access) reads(node string) bool  { return a.Read == nil || a.Read(node) }
func (a *Access) writes(node string) bool { return a.Write == nil || a.Write(node) }

// sendExcluded reports whether this node does not send a map to a peer: the peer may not read it,
// or the peer does not accept this node's records, provided that the settings of both nodes agree.
func (m *localMap) sendExcluded(self, peer string) bool {
	return !m.access.reads(peer) || !m.access.writes(self)
}

// excluded reports whether this node refuses all records of a node in the map.
func (m *localMap) excluded(node string) bool { return !m.access.writes(node) }

// UpdateAccess rereads from Options.Access which nodes may read and write a map, and restarts
// the streams of that map. The new streams refuse nodes that have lost their access. It does
// nothing if the replicator does not have the map.
//
// The table stays, and so do all of its records. This node's own subscriptions to the map begin
// with full syncs. The error wraps ErrMap, and nothing has changed then.
func (r *Replicator) UpdateAccess(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.localMaps()[name]
	if old == nil {
		return nil
	}
	// A new localMap makes all streams of the map begin again. The generation stays, so the peers'
	// subscriptions resume.
	m, err := newLocalMap(name, old.layout, old.table)
	if err != nil {
		return err
	}
	m.generation, m.access = old.generation, r.opt.Access(name)
	old.table.View(func(*table.Tx) { m.begun = old.begun })
	all := maps.Clone(r.localMaps())
	all[name] = m
	r.maps.Store(&all)
	r.notify()
	return nil
}
