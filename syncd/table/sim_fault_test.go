package table

// fault injects or repairs one fault.
func (r *simRun) fault(n *simNode) {
	f := &r.config
	switch r.rand.IntN(12) {
	case 0:
		if f.crash && n.d != nil {
			r.crash(n)
		}
	case 1, 2:
		if n.d == nil {
			r.setClock(n)
			n.start()
		}
	case 3:
		if f.newMap && n.d != nil {
			r.replace(n)
		}
	case 4:
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
		n.frozen = f.freeze && !n.frozen && n.d != nil
		r.notef("%s frozen: %v", n.name, n.frozen)
	case 9:
		n.faulty = nil
		if f.faulty && r.coin() {
			n.faulty = func() bool { return r.chance(0.3) }
		}
	case 10:
		if f.oneWay {
			to := r.rand.IntN(len(r.nodes))
			r.cuts[n.id][to] = true
			r.notef("messages from %s to %s are lost", n.name, r.nodes[to].name)
		}
	case 11:
		r.requestResend(n, f.resend)
	}
}

// crash ends a daemon, or its host together with the map.
func (r *simRun) crash(n *simNode) {
	r.stats["crashes"]++
	r.noteForgotten(n)
	n.stop()
	r.model.stopped(n)
	if r.config.lostMap && r.coin() {
		r.stats["lost maps"]++
		n.lb = r.newMap()
		r.model.lostMap(n)
		r.notef("%s has map %d now", n.name, n.lb.id)
	}
}

// noteForgotten records that a table which is discarded has forgotten tombstones.
func (r *simRun) noteForgotten(n *simNode) {
	r.forgotten = r.forgotten || (n.d.tab != nil && n.d.floor() > 0)
}

// replace simulates a load balancer that creates a new map.
func (r *simRun) replace(n *simNode) {
	r.stats["new maps"]++
	n.lb = r.newMap()
	r.model.lostMap(n)
	r.notef("%s's load balancer makes map %d", n.name, n.lb.id)
}

// cut ends a stream. Some of the messages in flight still arrive.
func (r *simRun) cut(n *simNode, really bool) {
	for range len(r.nodes) {
		l := r.link(n)
		if l == nil || l.st == nil || !really {
			continue
		}
		l.st.messages = l.st.messages[:r.rand.IntN(len(l.st.messages)+1)]
		l.st.broken = true
		r.stats["cuts"]++
		r.notef("stream %s > %s breaks", r.nodes[l.peer].name, n.name)
		if r.coin() {
			return
		}
	}
}

func (r *simRun) link(n *simNode) *simInboundStream {
	if n.d == nil {
		return nil
	}
	return n.d.inbound[r.rand.IntN(len(r.nodes))]
}

// requestResend requests a resend of some buckets.
func (r *simRun) requestResend(n *simNode, really bool) {
	for range len(r.nodes) {
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

// buckets returns the buckets of some keys.
func (r *simRun) buckets(n *simNode) *BucketSet {
	in := new(BucketSet)
	n.d.tab.View(func(tx *Tx) {
		for range 1 + r.rand.IntN(4) {
			in.Add(tx.Bucket(r.keys[r.rand.IntN(len(r.keys))][:]))
		}
	})
	return in
}

// partition divides the network into groups.
func (r *simRun) partition() {
	group := make([]int, len(r.nodes))
	for i := range group {
		group[i] = r.rand.IntN(2 + r.rand.IntN(2))
	}
	for i := range group {
		for j := range group {
			r.cuts[i][j] = group[i] != group[j]
		}
	}
	r.stats["partitions"]++
	r.notef("network partitioned: %v", group)
}

// restoreNetwork removes all cuts, or some.
func (r *simRun) restoreNetwork() {
	all := r.coin()
	for i := range r.cuts {
		for j := range r.cuts[i] {
			r.cuts[i][j] = r.cuts[i][j] && !all && r.coin()
		}
	}
	r.notef("network restored, all cuts: %v", all)
}
