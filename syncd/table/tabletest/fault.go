package tabletest

import "mapsync/syncd/table"

// fault injects or repairs one fault. A fault that the configuration excludes does nothing. Several
// faults may exist at the same time. Heal removes them at the end.
func (r *simulation) fault(n *Node) {
	f := &r.config
	if len(f.sequences) > 0 && r.chance(0.4) {
		f.sequences[r.rand.IntN(len(f.sequences))](n)
		return
	}
	switch r.rand.IntN(13) {
	case 0:
		switch {
		case !f.crash || n.Daemon == nil:
		case f.stops && r.chance(0.3):
			r.stopAll()
		default:
			r.crash(n)
		}
	case 1, 2:
		if n.Daemon == nil {
			r.setClock(n)
			n.Start()
		}
	case 3:
		if f.newMap && n.Daemon != nil {
			r.replace(n)
		}
	case 4:
		// The daemon cannot open the map: its pin is gone, or the load balancer is restarting.
		n.hidden = f.hide && !n.hidden
	case 5:
		r.cut(n, f.cut)
	case 6:
		if f.partitions {
			r.partition()
		}
	case 7:
		r.restoreNetwork()
	case 8:
		// Like a stopped process or a suspended machine: its map changes, and no event is delivered.
		n.frozen = f.freeze && !n.frozen && n.Daemon != nil
		r.notef("%s frozen: %v", n.Name, n.frozen)
	case 9:
		n.faulty = nil
		if f.faulty && r.coin() {
			// The kernel has no memory for a new entry at times.
			n.faulty = func() bool { return r.chance(0.3) }
		}
	case 10:
		if f.oneWay {
			// Messages of one direction do not arrive: a stream then carries requests or batches, not
			// both.
			to := r.rand.IntN(len(r.Nodes))
			r.Cuts[n.ID][to] = true
			r.notef("messages from %s to %s are lost", n.Name, r.Nodes[to].Name)
		}
	case 11:
		r.requestResend(n, f.resend)
	case 12:
		r.setFilters(n)
	}
}

// crash ends a daemon, or its host together with the map. The daemon has no chance to write or send
// anything. Its table is lost.
func (r *simulation) crash(n *Node) {
	r.stats["crashes"]++
	r.noteForgotten(n)
	r.Model.Stopping(n)
	if r.config.stops && r.coin() {
		n.saveStop()
	}
	n.Stop()
	r.Model.Stopped(n)
	if r.config.lostMap && r.coin() {
		r.loseMap(n)
	}
}

// loseMap makes the load balancer of a node whose daemon has ended begin with an empty map, as after a reboot.
func (r *simulation) loseMap(n *Node) {
	r.stats["lost maps"]++
	n.Map, n.copied = n.newMap(), nil
	r.Model.LostMap(n)
	r.notef("%s has map %d now", n.Name, n.Map.ID)
}

// noteForgotten records that a table which is discarded has forgotten tombstones. Nodes may need a
// comparison to converge then: see finish.
func (r *simulation) noteForgotten(n *Node) {
	r.forgotten = r.forgotten || (n.Daemon.tab != nil && n.Daemon.floor() > 0)
}

// replace simulates a load balancer that creates a new map. The daemon detects it in its next call of
// follow, and refills the new map from its table.
func (r *simulation) replace(n *Node) {
	r.stats["new maps"]++
	n.Map, n.copied = n.newMap(), nil
	r.Model.LostMap(n)
	r.notef("%s's load balancer makes map %d", n.Name, n.Map.ID)
}

// cut ends a stream. Some of the messages in flight still arrive. After each stream, it stops with a
// chance of one half. Receivers resume at their position on another stream. If really is false, nothing
// ends.
func (r *simulation) cut(n *Node, really bool) {
	for range len(r.Nodes) {
		l := r.link(n)
		if l == nil || l.st == nil || !really {
			continue
		}
		l.st.messages = l.st.messages[:r.rand.IntN(len(l.st.messages)+1)]
		// Some of the messages on their way are lost, as with a TCP connection.
		l.st.broken = true
		r.stats["cuts"]++
		r.notef("stream %s > %s breaks", r.Nodes[l.peer].Name, n.Name)
		if r.coin() {
			return
		}
	}
}

// link returns the inbound stream of a node from a random peer, nil if there is none.
func (r *simulation) link(n *Node) *InboundStream {
	if n.Daemon == nil {
		return nil
	}
	return n.Daemon.Inbound[r.rand.IntN(len(r.Nodes))]
}

// requestResend requests a resend of some buckets. It is needless, or repairs less than differs: both
// must be harmless. Half of the requests are full syncs.
func (r *simulation) requestResend(n *Node, really bool) {
	for range len(r.Nodes) {
		l := r.link(n)
		if l == nil || l.st == nil || !really {
			continue
		}
		r.stats["resends"]++
		if r.coin() {
			l.repeatFullSync = true
		} else {
			l.requestRepair(r.buckets(n))
		}
	}
}

// buckets returns the buckets of some keys. A bucket without a key would test nothing.
func (r *simulation) buckets(n *Node) *table.BucketSet {
	in := new(table.BucketSet)
	n.Daemon.tab.View(func(tx *table.Tx) {
		for range 1 + r.rand.IntN(4) {
			in.Add(tx.Bucket(n.Daemon.key(r.rand.IntN(len(r.keys)))))
		}
	})
	return in
}

// partition divides the network into groups. Nodes of one group reach each other. Each group treats the
// others as gone, so several nodes may write the same keys.
func (r *simulation) partition() {
	group := make([]int, len(r.Nodes))
	for i := range group {
		group[i] = r.rand.IntN(2 + r.rand.IntN(2))
	}
	for i := range group {
		for j := range group {
			r.Cuts[i][j] = group[i] != group[j]
		}
	}
	r.stats["partitions"]++
	r.notef("network partitioned: %v", group)
}

// restoreNetwork removes all cuts, or some.
func (r *simulation) restoreNetwork() {
	all := r.coin()
	for i := range r.Cuts {
		for j := range r.Cuts[i] {
			r.Cuts[i][j] = r.Cuts[i][j] && !all && r.coin()
		}
	}
	r.notef("network restored, all cuts: %v", all)
}
