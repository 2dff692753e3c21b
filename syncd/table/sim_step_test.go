package table

import "fmt"

// step lets one thing happen.
func (r *simRun) step() {
	r.pass()
	n := r.nodes[r.rand.IntN(len(r.nodes))]
	switch x := r.rand.IntN(100); {
	case x < r.fate.share:
		r.work(n)
	case x < r.fate.share+r.fate.faults:
		r.fault(n)
	default:
		for range 1 + r.rand.IntN(12) {
			if n.runs() && r.err == nil {
				r.turn(n.d)
				r.now += 1 + r.rand.Int64N(20_000)
			}
		}
	}
}

// work is one thing that a load balancer does.
func (r *simRun) work(n *simNode) {
	key := r.rand.IntN(len(r.keys))
	for range 3 {
		if home := r.model.keys[key].home; home < 0 || home == n.id {
			break
		}
		key = r.rand.IntN(len(r.keys))
	}
	cpu, ctx, jitter := uint16(r.rand.IntN(simCPUs)), Context(max(0, r.rand.IntN(5)-2)), r.rand.Int64N(8e5)-4e5
	if r.tick > 0 {
		jitter = 0
	}
	hidden := r.blind || (r.fate.kprobe && ctx == ContextSyscall)
	seen := !hidden && (!r.fate.losses || r.chance(0.9))
	e := &n.lb.entries[key]
	home := r.model.keys[key].home
	x := r.rand.IntN(100)
	switch {
	case home >= 0 && home != n.id:
		if r.fate.expiry && e.live {
			r.notef("%s's collector takes %s (seen %v)", n.name, r.name(key), seen && !r.fate.kprobe)
			n.remove(key, cpu, ContextSyscall, seen && !r.fate.kprobe, jitter)
		}
	case !e.live || x < 45:
		v := r.model.value(key)
		r.scribble(n, &v)
		ok := n.put(key, v, cpu, ctx, seen, jitter)
		r.notef("%s's load balancer writes %s %s by %s on %d (seen %v): %v", n.name, r.name(key), valueText(v[:]), ctx, cpu, seen, ok)
	case x < 60:
		v := r.touched(key, e)
		r.scribble(n, &v)
		r.notef("%s's load balancer writes %s again, %s by %s on %d (seen %v)", n.name, r.name(key), valueText(v[:]), ctx, cpu, seen)
		n.put(key, v, cpu, ctx, seen, jitter)
	case x < 80:
		r.notef("%s's load balancer deletes %s by %s on %d (seen %v)", n.name, r.name(key), ctx, cpu, seen)
		n.remove(key, cpu, ctx, seen, jitter)
	case x < 95 && r.fate.inside:
		v := r.touched(key, e)
		if r.coin() {
			v = r.model.value(key)
		}
		r.scribble(n, &v)
		r.notef("%s's load balancer changes %s in place to %s", n.name, r.name(key), valueText(v[:]))
		n.put(key, v, cpu, ctx, false, jitter)
	case r.fate.inside:
		r.sweepBatch(n, key)
	}
}

// touched is the value of an entry that is written again as it is. If a daemon put back an
// older one, it gets a number of its own.
func (r *simRun) touched(key int, e *simEntry) entryValue {
	if k := &r.model.keys[key]; k.home >= 0 && !sameValue(e.value, k.last) {
		return r.model.value(key)
	}
	return e.value
}

// scribble changes what of a value means nothing by itself.
func (r *simRun) scribble(n *simNode, v *entryValue) {
	if n.opt.Carried != nil {
		v[volatileByte], v[localByte] = byte(r.rand.IntN(3)), byte(r.rand.IntN(3))
	}
}

// sweepBatch is a batch lookup-and-delete, of which no hook tells, from a key on.
func (r *simRun) sweepBatch(n *simNode, from int) {
	for key := from; key < min(from+3, len(r.keys)); key++ {
		if home := r.model.keys[key].home; home < 0 || home == n.id || r.fate.expiry {
			r.notef("%s's load balancer deletes %s unseen", n.name, r.name(key))
			n.remove(key, 0, ContextSyscall, false, 0)
		}
	}
}

// turn is one thing that a daemon does.
func (r *simRun) turn(d *simDaemon) {
	x := r.rand.IntN(100)
	switch {
	case x < 6:
		r.see(d)
	case x < 10:
		d.follow()
	case d.state == simLoading && x < 60:
		d.load(1 + r.rand.IntN(6))
	case !d.known:
	case x < 25:
		d.deliver(r.rand.IntN(simCPUs))
	case x < 30:
		d.claim()
		d.note()
	case x < 32:
		d.findUnknown()
		d.tab.View(func(tx *Tx) { tx.Audit(1 + r.rand.IntN(5)) })
		d.compact()
	case x >= 60:
		r.talk(d)
	case d.state < simSyncing:
	case x < 52:
		d.work(1 + r.rand.IntN(3))
	case x < 56 && (r.scans || d.scanning):
		if r.coin() {
			d.scanSome(1 + r.rand.IntN(5))
		} else {
			d.scanOn()
		}
	case x < 58:
		d.settle()
	case x < 59:
		d.compact()
	default:
		d.upkeep()
	}
}

// talk is one thing that a daemon does for its streams, or all that there is to do.
func (r *simRun) talk(d *simDaemon) {
	l := d.links[r.rand.IntN(len(d.links))]
	switch x := r.rand.IntN(10); {
	case x < 3 && len(d.sessions) > 0:
		d.sessions[r.rand.IntN(len(d.sessions))].serve(1 + r.rand.IntN(5))
	case x < 7 && l != nil:
		l.request()
		l.take()
	case x < 8:
		for i := len(d.sessions) - 1; i >= 0; i-- {
			d.sessions[i].serve(1 + r.rand.IntN(5))
		}
	default:
		for _, l := range d.links {
			if l != nil {
				l.request()
				l.take()
			}
		}
	}
}

// see tells a daemon some of what there is to be seen of who is live.
func (r *simRun) see(d *simDaemon) {
	live, same := make([]uint64, len(r.nodes)), d.toldAt != 0
	copy(live, d.view.live)
	for i, n := range r.nodes {
		if i == d.n.id {
			continue
		}
		var inc uint64
		if n.d != nil && r.open(i, d.n.id) {
			inc = n.d.self.Incarnation
		}
		switch {
		case n.d != nil && n.frozen && r.coin(), r.fate.gossip && r.chance(0.03):
			inc = 0
		case r.chance(0.3):
			continue
		}
		same = same && live[i] == inc
		live[i] = inc
	}
	if !same {
		d.setPeers(live)
	}
}

// finish ends the run: what is wrong is put right, and what should be is looked at.
func (r *simRun) finish() error {
	for _, n := range r.nodes {
		if n.d == nil && (r.chance(r.fate.comeBack) || n.lives == 0) {
			r.setClock(n)
			n.start()
		}
	}
	if err := r.distinct(); err != nil {
		return err
	}
	r.notef("quiet")
	r.heal()
	err := r.settle()
	for range 4 {
		if err == nil || r.err != nil || (!r.forgot() && !r.defended) {
			break
		}
		r.notef("%v", err)
		r.compare()
		r.carry()
		err = r.settle()
	}
	if err != nil {
		return err
	}
	return r.judge()
}

// judge looks at tables by themselves, and at what the model demands.
func (r *simRun) judge() error {
	up := r.up()
	for _, n := range up {
		checkInvariants(r, n.d.tab)
		if n.d.tab.stats.AuditFound > 0 {
			return fmt.Errorf("%s: audits found digests that were wrong", n.name)
		}
	}
	if len(up) == 0 {
		return nil
	}
	for k := range r.keys {
		c := up[0].d.content(k)
		if err := r.model.check(k, &c); err != nil {
			return err
		}
	}
	return nil
}

// forgot reports whether some node has forgotten a tombstone: what was deleted may then be
// told by one that has not heard, until nodes compare.
func (s *sim) forgot() bool {
	for _, n := range s.up() {
		if n.d.tab.floor > 0 {
			return true
		}
	}
	return s.forgotten
}

// distinct demands that digests of two nodes are the same if and only if what they hold is.
func (r *simRun) distinct() (err error) {
	up := r.up()
	if len(up) < 2 {
		return nil
	}
	a := up[r.rand.IntN(len(up))]
	b := up[r.rand.IntN(len(up))]
	if a == b {
		return nil
	}
	node := r.nodes[r.rand.IntN(len(r.nodes))].name
	a.d.tab.View(func(ta *Tx) {
		b.d.tab.View(func(tb *Tx) {
			same := true
			for k := range r.keys {
				x, y := a.content(ta, k), b.content(tb, k)
				mine := x.live() && x.version != 0 && x.owner.Node == node
				other := y.live() && y.version != 0 && y.owner.Node == node
				same = same && mine == other && (!mine || x.same(&y, a.opt.Carried != nil))
			}
			x := ta.Digest(node, nil)
			if y := tb.Digest(node, nil); (x == y) != same {
				err = fmt.Errorf("%s and %s hold the same of %s: %v; their digests say %v", a.name, b.name, node, same, x == y)
			}
		})
	})
	return err
}

// compare has each node look at what each other tells it, and told again what differs.
func (r *simRun) compare() {
	for _, n := range r.up() {
		for _, l := range n.d.links {
			if l == nil || l.state != simServed {
				continue
			}
			in := new(BucketSet)
			for i, o := range r.nodes {
				if n.d.view.comparable(i, l.peer, n.id) {
					differing(in, l.st.from.tab, n.d.tab, o.name)
				}
			}
			if in.Len() > 0 {
				l.ask(in)
			}
		}
	}
}

func differing(in *BucketSet, a, b *Table, node string) {
	var x, y Buckets
	a.View(func(tx *Tx) { tx.Digest(node, &x) })
	b.View(func(tx *Tx) { tx.Digest(node, &y) })
	for i := range x {
		if x[i] != y[i] {
			in.Add(i)
		}
	}
}
