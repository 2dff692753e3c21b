package table

import "slices"

// checkInvariants verifies the invariants of a table that hold between any two calls.
func checkInvariants(tb interface {
	Helper()
	Fatalf(string, ...any)
}, t *Table,
) {
	tb.Helper()
	seen := make(map[uint32]bool)
	newTombs, q := make(map[placedSlot]bool), &t.newTombs
	for i, last := q.head, uint64(0); i < q.head+q.n; i++ {
		p := q.chunks[i/fifoChunk][i%fifoChunk]
		if p.seq <= last {
			tb.Fatalf("element at position %d of the queue for compaction comes after position %d", p.seq, last)
		}
		newTombs[p], last = true, p.seq
		if t.isNewTomb(p) && p.seq <= t.log.last {
			tb.Fatalf("tombstone at position %d waits for compaction behind position %d of the log", p.seq, t.log.last)
		}
	}
	var st Stats
	notHeld, sum := make(map[string]int), 0
	evicted, byLack := make(map[string]int), [3]int{}
	held, absent := 0, 0
	checkList := func(list uint32, inOrder bool) {
		last, prev := uint64(0), list
		for s := t.meta(list).next; s != list; s = t.meta(s).next {
			m := t.meta(s)
			switch {
			case seen[s]:
				tb.Fatalf("slot %d is in the lists twice", s)
			case m.prev != prev:
				tb.Fatalf("slot %d has predecessor %d, not %d", s, m.prev, prev)
			case m.is(flagFree):
				tb.Fatalf("slot %d is free and in a list", s)
			case m.is(flagUnversioned) == inOrder || (m.version == 0) == inOrder || (m.seq == 0) == inOrder:
				tb.Fatalf("slot %d is in the wrong list: version %d, position %d", s, m.version, m.seq)
			case inOrder && m.seq <= last:
				tb.Fatalf("slot %d at position %d comes after position %d", s, m.seq, last)
			case inOrder && !m.live() && !m.is(flagInTombs) && !newTombs[placedSlot{m.seq, s}]:
				tb.Fatalf("tombstone in slot %d is not queued for compaction", s)
			case (m.is(flagExpired) && m.live()) || (m.is(flagReleased) && !m.is(flagExpired)):
				tb.Fatalf("slot %d has flags %b", s, m.flags)
			case m.is(flagFailed|flagNotHeld) && !m.is(flagDirty), m.is(flagRedo) && !m.is(flagDirty|flagHeld):
				tb.Fatalf("slot %d has flags %b", s, m.flags)
			case m.is(flagReread) && !m.is(flagDirty) && !m.is(flagInRereads):
				tb.Fatalf("slot %d needs a reread and is not queued", s)
			case m.is(flagFailed) && !m.is(flagInFailures):
				tb.Fatalf("slot %d failed and is not queued for a retry", s)
			}
			if _, found := t.find(t.key(s)); found != s {
				tb.Fatalf("key of slot %d is found in slot %d", s, found)
			}
			if m.is(flagNotHeld|flagEntry) && !m.live() || m.is(flagEntry) && m.is(flagFailed|flagNotHeld|flagEvicted) {
				tb.Fatalf("slot %d has flags %b, which exclude each other", s, m.flags)
			}
			if m.is(flagHeld) {
				if held++; t.clears.absentOf.has(s) {
					absent++
				}
				if !m.live() || m.is(flagDirty|flagUnversioned|flagEvicted) {
					tb.Fatalf("slot %d has flags %b, its delete waits", s, m.flags)
				}
			}
			if byLack[m.flags.lack()]++; m.flags.lack() == lacksEvicted {
				evicted[t.owners.list[m.owner].Node]++
			}
			if m.is(flagNotHeld) {
				notHeld[t.owners.list[m.owner].Node]++
				sum++
			}
			seen[s], last, prev = true, m.seq, s
			st.count(m)
		}
		if t.meta(list).prev != prev || (inOrder && last > t.seq) {
			tb.Fatalf("list %d ends at %d, position %d of %d", list, prev, last, t.seq)
		}
	}
	checkList(order, true)
	checkList(unversioned, false)
	checkCompact(tb, t, &st)
	if len(seen) != t.used || t.used != t.index.count {
		tb.Fatalf("%d slots in lists, %d in use, %d in the index", len(seen), t.used, t.index.count)
	}
	for node, d := range t.digester.nodes {
		if d.notHeld != notHeld[node] {
			tb.Fatalf("%d records of %s are not held, counted %d", notHeld[node], node, d.notHeld)
		}
		if d.evicted != evicted[node] {
			tb.Fatalf("%d records of %s are evicted, counted %d", evicted[node], node, d.evicted)
		}
	}
	if byLack[lacksNothing] = t.room.byLack[lacksNothing]; t.room.byLack != byLack {
		tb.Fatalf("the map lacks entries: %v, counted %v", byLack, t.room.byLack)
	}
	if x := &t.clears; x.held != held-absent || x.absentHeld != absent {
		tb.Fatalf("%d deletes and %d absences wait, counted %d and %d", held-absent, absent, x.held, x.absentHeld)
	}
	checkSuperseded(tb, t)
	if t.notHeld != sum {
		tb.Fatalf("%d records are not held, counted %d", sum, t.notHeld)
	}
	got := t.stats
	got = Stats{Live: got.Live, Tombstones: got.Tombstones, Released: got.Released, Unversioned: got.Unversioned, Dirty: got.Dirty, Failed: got.Failed, PendingRereads: got.PendingRereads}
	if got != st {
		tb.Fatalf("stats: got %+v, want %+v as counted", got, st)
	}
	checkCursors(tb, t)
	for _, h := range append(slices.Clone(t.owners.groups), &t.owners.otherOwners) {
		if h.victimCursor != nil && !slices.Contains(t.cursors, h.victimCursor) {
			tb.Fatalf("victim cursor of %q is not registered", h.node)
		}
	}
	checkDigests(tb, t)
	checkBarriers(tb, t)
}

// checkCompact verifies the log of compact tombstones.
func checkCompact(tb interface{ Fatalf(string, ...any) }, t *Table, st *Stats) {
	l := &t.log
	if n := len(l.byID); n != len(l.chunks)+len(l.free) {
		tb.Fatalf("%d ids of chunks, %d in use and %d free", n, len(l.chunks), len(l.free))
	}
	for _, id := range l.free {
		if l.byID[id] != nil {
			tb.Fatalf("the free id %d has a chunk", id)
		}
	}
	live, used, last := 0, 0, uint64(0)
	for at, c := range l.chunks {
		if c.live == 0 || l.byID[c.id] != c || c.n > len(c.places) || len(c.runs) == 0 || c.runs[0].first != 0 {
			tb.Fatalf("chunk %d of %d: %+v", at, len(l.chunks), c)
		}
		n := 0
		for i := range c.n {
			if c.seq(i) <= last || c.seq(i) > l.last {
				tb.Fatalf("compact tombstone at position %d comes after %d, last %d", c.seq(i), last, l.last)
			}
			last = c.seq(i)
			if c.is(i, tombDead) {
				continue
			}
			n++
			key := l.key(c, i)
			h, s := t.find(key)
			number := l.find(h, key)
			if want := l.number(c, i) | compactBit; s != 0 || number != want || i < c.head {
				tb.Fatalf("compact tombstone %x is found as %x, in slot %d", want, number, s)
			}
			st.Tombstones++
		}
		if n != c.live {
			tb.Fatalf("chunk %d has %d entries, counted %d", at, c.live, n)
		}
		live, used = live+n, used+c.n
	}
	if live != l.n || used != l.used || t.expanded.slot != 0 {
		tb.Fatalf("log has %d entries of %d, counted %d of %d; expanded slot %d", l.n, l.used, live, used, t.expanded.slot)
	}
	indexed := 0
	seen := make(map[*tombSegment]bool)
	for _, g := range l.index.dir {
		if seen[g] {
			continue
		}
		seen[g] = true
		n := 0
		for _, tag := range g.tags {
			if tag != 0 {
				n++
			}
		}
		if n != g.used || n == len(g.tags) {
			tb.Fatalf("segment of %d places has %d entries, counted %d", len(g.tags), g.used, n)
		}
		indexed += n
	}
	if indexed != l.n {
		tb.Fatalf("%d tombstones in the index, %d in the log", indexed, l.n)
	}
}

func checkBarriers(tb interface{ Fatalf(string, ...any) }, t *Table) {
	for _, d := range t.barriers {
		n := 0
		for s := range uint32(64 * len(d.slots)) {
			if d.slots[s/64]&(1<<(s%64)) == 0 {
				continue
			}
			if n++; s >= t.allocated || !t.meta(s).is(flagDirty) {
				tb.Fatalf("slot %d is in a write barrier and is not dirty", s)
			}
		}
		if n != d.pending {
			tb.Fatalf("write barrier has %d slots, counted %d", n, d.pending)
		}
	}
}

func checkCursors(tb interface{ Fatalf(string, ...any) }, t *Table) {
	for _, c := range t.cursors {
		m := t.meta(c.at)
		next := t.meta(m.next)
		switch {
		case !m.is(flagCursor):
			tb.Fatalf("slot %d has a cursor and no cursor flag", c.at)
		case m.seq > c.pos:
			tb.Fatalf("cursor at %d rests beyond, on %d", c.pos, m.seq)
		case m.next != order && next.seq <= c.pos:
			tb.Fatalf("cursor at %d has not passed %d", c.pos, next.seq)
		}
	}
}

func (s *Stats) count(m *meta) {
	add := func(n *int, is bool) {
		if is {
			*n++
		}
	}
	add(&s.Live, m.live())
	add(&s.Tombstones, !m.live())
	add(&s.Released, m.is(flagReleased))
	add(&s.Unversioned, m.is(flagUnversioned))
	add(&s.Dirty, m.is(flagDirty))
	add(&s.Failed, m.is(flagFailed))
	add(&s.PendingRereads, m.is(flagReread))
}

// checkSuperseded verifies the numbers of records that owners supersede.
func checkSuperseded(tb interface{ Fatalf(string, ...any) }, t *Table) {
	count := make(map[OwnerID]int)
	for s := firstSlot; s < t.allocated; s++ {
		if m := t.meta(s); m.is(flagSuperseded) {
			if count[OwnerID(m.cpuOrPeer)]++; m.is(flagFree) || !m.live() {
				tb.Fatalf("slot %d has flags %b and is superseded", s, m.flags)
			}
		}
	}
	for id := range t.owners.list {
		if o := &t.owners.list[id]; o.superseding != count[OwnerID(id)] {
			tb.Fatalf("%v supersedes %d records, counted %d", o.Owner, count[OwnerID(id)], o.superseding)
		}
	}
}
