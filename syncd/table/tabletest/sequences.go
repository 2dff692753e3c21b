package tabletest

import (
	"time"

	"mapsync/syncd/table"
)

// This file has series of events that some rules need in a precise order, which random steps seldom have.

// reboot reboots a machine whose map is lost, and that filters records or has too small a map. Its daemon exchanges records with
// the others, and is then killed. The filters have ended when the next one starts.
func (r *simulation) reboot(n *Node) {
	if !r.undisturbed() || n.Daemon == nil {
		return
	}
	r.stats["reboots"]++
	r.crash(n)
	if !n.clean {
		r.loseMap(n)
	}
	room := n.room
	late := r.limitAfterReboot(n)
	r.Now += r.tick + 1 // each incarnation is another one
	n.Start()
	r.exchange(n, r.rand.IntN(5))
	n.Daemon.SaveMapID()
	switch {
	case late:
		r.receiveLate(n)
	case r.coin():
		r.repeatFullSyncs(n)
	}
	r.notef("%s is killed, and its filters end", n.Name)
	r.noteForgotten(n)
	r.Model.Stopping(n)
	n.Stop()
	r.Model.Stopped(n)
	n.filtering, n.room = filtering{}, room
	r.Now += r.tick + 1
	n.Start()
}

// limitAfterReboot makes a node filter records or gives it too small a map. late reports both: the filters are to end while the
// map is full.
func (r *simulation) limitAfterReboot(n *Node) (late bool) {
	x := r.rand.IntN(6)
	switch late = x == 2; x {
	case 0:
		n.room = 1 + r.rand.IntN(2)
		for range 3 {
			r.stepLoadBalancer(n)
		}
		return false
	case 1:
		n.filtering = filtering{stoppedAt: n.clock() - r.rand.Int64N(int64(time.Minute))}
		return false
	case 2:
		n.room = 1 + r.rand.IntN(2)
	}
	n.filters = make([]filter, len(r.keys))
	for i := range n.filters {
		n.filters[i] = filter(r.rand.IntN(3))
	}
	return late
}

// receiveLate ends the filters of a node whose map its load balancer has filled meanwhile. Peers send the filtered records then,
// which include some of earlier incarnations of the node.
func (r *simulation) receiveLate(n *Node) {
	for range 3 {
		r.stepLoadBalancer(n)
	}
	r.exchange(n, 1)
	n.endFilters()
	for range 2 {
		r.Now += repeatDelay
		r.exchange(n, 1)
	}
	n.Daemon.SaveMapID()
}

// repeatFullSyncs makes peers receive all records of a node again, which may have filtered those of its earlier incarnations.
func (r *simulation) repeatFullSyncs(n *Node) {
	for _, p := range r.Up() {
		if l := p.Daemon.Inbound[n.ID]; l != nil && r.coin() {
			l.repeatFullSync = true
		}
	}
	r.exchange(n, 2)
}

// drainAfterUses drains a node whose load balancer has just changed volatile bytes of its entries. The load balancer clears its map
// when scans could find these changes again.
func (r *simulation) drainAfterUses(n *Node) {
	if !r.undisturbed() || n.Daemon == nil || n.drained() || n.opt.Carried == nil {
		return
	}
	r.exchange(n, 2)
	if d := n.Daemon; d.state < stateReplicating || d.m != n.Map {
		return
	}
	for key := range n.Map.entries {
		if e := &n.Map.entries[key]; e.live && r.Model.keys[key].home == n.ID {
			v := r.rewrittenValue(n, key)
			v[volatileByte]++
			n.Put(key, v, 0, table.ContextPacket, r.coin(), 0)
		}
	}
	r.Now += int64(100 * time.Millisecond)
	if !r.awaitPeers(n.Daemon) {
		return
	}
	r.completeDrain(n)
	r.Now += int64(30 * time.Second)
	r.runAll()
	r.clearDrained(n)
}

// copyBeforeDeletes lets the load balancer of a node copy its map, and use the copy when other load balancers have deleted entries
// that it has. Before the daemon has read the copied entries again, it receives further deletes.
func (r *simulation) copyBeforeDeletes(n *Node) {
	if !r.undisturbed() || n.Daemon == nil {
		return
	}
	r.exchange(n, 1)
	if n.copied == nil {
		r.copyMap(n)
	}
	r.deleteOthers(n)
	r.runAll()
	if r.copyMap(n); n.copied != nil {
		return
	}
	d := n.Daemon
	d.follow()
	d.LoadAll()
	r.deleteOthers(n)
	for _, p := range r.Up() {
		if p != n {
			p.Daemon.RunUntilIdle()
		}
	}
	r.PumpAll()
}

// deleteOthers lets the load balancers of the other nodes delete some of their entries.
func (r *simulation) deleteOthers(n *Node) {
	for key := range r.keys {
		if home := r.Model.keys[key].home; home >= 0 && home != n.ID && r.coin() {
			r.notef("%s's load balancer deletes %s", r.Nodes[home].Name, r.name(key))
			r.Nodes[home].Remove(key, 0, table.ContextPacket, true, 0)
		}
	}
	r.Now += int64(100 * time.Millisecond)
}
