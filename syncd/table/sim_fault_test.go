package table

// fault lets one thing go wrong, or come right.
func (r *simRun) fault(n *simNode) {
	f := &r.fate
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
		if f.part {
			r.part()
		}
	case 7:
		r.mend()
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
			r.notef("nothing gets from %s to %s", n.name, r.nodes[to].name)
		}
	case 11:
		r.again(n, f.retell)
	}
}

// crash ends a daemon, or its host with the map.
func (r *simRun) crash(n *simNode) {
	r.stats["crashes"]++
	r.remember(n)
	n.stop()
	r.model.stopped(n)
	if r.fate.lostMap && r.coin() {
		r.stats["lost maps"]++
		n.lb = r.newMap()
		r.model.lostMap(n)
		r.notef("%s has map %d now", n.name, n.lb.id)
	}
}

// remember notes what a table that goes away has forgotten.
func (r *simRun) remember(n *simNode) {
	r.forgotten = r.forgotten || (n.d.tab != nil && n.d.tab.floor > 0)
}

// replace has the load balancer make a new map.
func (r *simRun) replace(n *simNode) {
	r.stats["new maps"]++
	n.lb = r.newMap()
	r.model.lostMap(n)
	r.notef("%s's load balancer makes map %d", n.name, n.lb.id)
}

// cut ends a stream. Some of what is under way still arrives.
func (r *simRun) cut(n *simNode, really bool) {
	for range len(r.nodes) {
		l := r.link(n)
		if l == nil || l.st == nil || !really {
			continue
		}
		l.st.down = l.st.down[:r.rand.IntN(len(l.st.down)+1)]
		l.st.broken = true
		r.stats["cuts"]++
		r.notef("stream %s > %s breaks", r.nodes[l.peer].name, n.name)
		if r.coin() {
			return
		}
	}
}

func (r *simRun) link(n *simNode) *simLink {
	if n.d == nil {
		return nil
	}
	return n.d.links[r.rand.IntN(len(r.nodes))]
}

// again has something told again.
func (r *simRun) again(n *simNode, really bool) {
	for range len(r.nodes) {
		l := r.link(n)
		if l == nil || l.st == nil || !really {
			continue
		}
		r.stats["told again"]++
		if r.coin() {
			l.rewalk = true
		} else {
			l.ask(r.buckets(n))
		}
	}
}

// buckets returns those of some keys.
func (r *simRun) buckets(n *simNode) *BucketSet {
	in := new(BucketSet)
	n.d.tab.View(func(tx *Tx) {
		for range 1 + r.rand.IntN(4) {
			in.Add(tx.Bucket(r.keys[r.rand.IntN(len(r.keys))][:]))
		}
	})
	return in
}

// part parts the network into groups.
func (r *simRun) part() {
	group := make([]int, len(r.nodes))
	for i := range group {
		group[i] = r.rand.IntN(2 + r.rand.IntN(2))
	}
	for i := range group {
		for j := range group {
			r.cuts[i][j] = group[i] != group[j]
		}
	}
	r.stats["parted"]++
	r.notef("parted: %v", group)
}

// mend takes all cuts back, or some.
func (r *simRun) mend() {
	all := r.coin()
	for i := range r.cuts {
		for j := range r.cuts[i] {
			r.cuts[i][j] = r.cuts[i][j] && !all && r.coin()
		}
	}
	r.notef("mended: %v", all)
}
