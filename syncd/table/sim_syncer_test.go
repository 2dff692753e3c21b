package table

import "errors"

var errMapFull = errors.New("map full")

// simSyncer writes dirty records into the kernel map and rereads the keys that the table requests. The
// steps are in the order of syncd/kmap and do not overlap.
type simSyncer struct {
	phase   simPhase
	writer  *Cursor // nil: no map is attached
	batch   []simWrite
	refused []simWrite // writes that a full map refused
	keys    []byte     // keys with pending rereads
	reads   []simRead
	reading Reading
}

// simPhase is the next step of a syncer.
type simPhase uint8

const (
	simFill simPhase = iota
	simWriting
	simReport
	simVictims
	simDrop
	simDropped
	simTake
	simReading
	simAnswer
)

type simWrite struct {
	key     int
	value   entryValue
	dead    bool
	done    bool
	raced   bool // the load balancer wrote the key, and the table has not received the event
	at      int  // time at which the record was taken, in writes so far
	err     error
	ref     Ref
	version Version
}

func (d *simDaemon) openSyncer() {
	d.phase, d.batch, d.refused, d.keys, d.reads = simFill, d.batch[:0], d.refused[:0], d.keys[:0], d.reads[:0]
	d.writer = d.tab.NewCursor(d.applied())
}

func (d *simDaemon) closeSyncer() {
	if d.writer != nil {
		d.writer.Close()
		d.writer = nil
	}
}

// work does the next step. A step that can be divided handles at most limit keys.
func (d *simDaemon) work(limit int) {
	switch d.phase {
	case simFill:
		d.take(d.n.burst)
		d.phase = simWriting
	case simWriting:
		if d.write(limit); len(d.batch) == 0 || d.batch[len(d.batch)-1].done {
			d.phase = simReport
		}
	case simReport:
		d.report(nil)
		d.phase = simTake
		if len(d.refused) > 0 {
			d.phase = simVictims
		}
	case simVictims:
		d.victims()
		d.phase = simDrop
	case simDrop:
		if d.write(limit); len(d.batch) == 0 || d.batch[len(d.batch)-1].done {
			d.phase = simDropped
		}
	case simDropped:
		d.dropped()
		d.phase = simTake
	case simTake:
		d.takeRereads(64)
		d.phase = simReading
		if len(d.keys) == 0 {
			d.phase = simFill
		}
	case simReading:
		d.readKeys()
		d.phase = simAnswer
	case simAnswer:
		d.reportReads()
		d.phase = simFill
	}
}

// idle reports whether the syncer has no work.
func (d *simDaemon) idle() bool {
	if d.phase != simFill {
		return false
	}
	st := d.tab.Stats()
	return st.Dirty == st.Failed && st.Applied == st.Head && d.internals().Rereads(d.tab) == 0
}

// take lets the writer take up to limit records.
func (d *simDaemon) take(limit int) {
	s := d.n.sim
	d.tab.View(func(tx *Tx) {
		var r Record
		for len(d.batch) < limit && tx.NextDirty(d.writer, &r) {
			w := simWrite{key: s.key(r.Key), dead: r.Delete, ref: r.Ref, version: r.Version}
			copy(w.value[:], r.Value)
			if s.model != nil {
				w.raced, w.at = s.model.pending(d, w.key), s.model.numbers
			}
			d.batch = append(d.batch, w)
		}
	})
}

// write writes up to limit of the taken records to the kernel map.
func (d *simDaemon) write(limit int) {
	for i := range d.batch {
		w := &d.batch[i]
		if w.done || limit == 0 {
			continue
		}
		limit--
		w.done = true
		d.apply(w)
	}
}

func (d *simDaemon) apply(w *simWrite) {
	s := d.n.sim
	switch e := &d.m.entries[w.key]; {
	case w.dead:
		if s.trace != nil {
			s.trace("%s writes %s: delete", d.n.name, s.name(w.key))
		}
	case d.n.faulty != nil && d.n.faulty():
		w.err = errors.New("no memory")
		return
	case !e.live && d.n.room > 0 && d.m.n >= d.n.room && !d.n.lru:
		w.err = errMapFull
		return
	case s.trace != nil:
		s.trace("%s writes %s %s", d.n.name, s.name(w.key), valueText(w.value[:]))
	}
	s.moves++
	if s.model != nil && d.phase != simDrop {
		s.model.checkWrite(d, w)
	}
	if w.dead {
		d.m.drop(w.key)
		return
	}
	v, e := w.value, &d.m.entries[w.key]
	if e.live && d.n.opt.Carried != nil {
		v[localByte] = e.value[localByte]
	}
	if !e.live && d.n.lru && d.m == d.n.lb && d.n.room > 0 && d.m.n >= d.n.room {
		d.n.evict(w.key, 0, ContextOwn, !s.blind, 0)
	}
	d.m.set(w.key, v)
	if s.keysOnly {
		d.n.emit(simEvent{key: w.key, op: OpUpdate, ctx: ContextOwn}, 0)
	}
}

// report reports the writes to the table, after it has written the remaining records. With an error it
// reports that no record was written.
func (d *simDaemon) report(err error) {
	if err == nil {
		d.write(len(d.batch))
	}
	d.refused = d.refused[:0]
	d.tab.Update(func(tx *Tx) {
		for i := range d.batch {
			w := &d.batch[i]
			if err != nil {
				w.err = err
			}
			tx.Applied(w.ref, w.version, w.err)
			if errors.Is(w.err, errMapFull) && !w.dead {
				d.refused = append(d.refused, *w)
			}
		}
		tx.SetApplied(d.writer.Position())
	})
	d.batch = d.batch[:0]
}

// victims selects the entries that are displaced for the records that a full map refused.
func (d *simDaemon) victims() {
	s := d.n.sim
	d.tab.Update(func(tx *Tx) {
		var r Record
		for _, w := range d.refused {
			if tx.Displace(w.ref, w.version, &r) {
				d.batch = append(d.batch, simWrite{key: s.key(r.Key), dead: true, ref: r.Ref, version: r.Version})
				s.notef("%s displaces %s for %s", d.n.name, text(r.Key), s.name(w.key))
			}
		}
	})
	d.refused = d.refused[:0]
}

func (d *simDaemon) dropped() {
	now := d.n.clock()
	d.tab.Update(func(tx *Tx) {
		for i := range d.batch {
			tx.Displaced(d.batch[i].ref, d.batch[i].version, now)
		}
	})
	d.batch = d.batch[:0]
}

// takeRereads takes keys with pending rereads, readKeys reads them, and reportReads reports the
// results.
func (d *simDaemon) takeRereads(limit int) {
	var buf [64 * simKey]byte
	d.tab.Update(func(tx *Tx) {
		tx.BeginReading(&d.reading)
		n := tx.TakeRereads(buf[:min(limit, 64)*simKey])
		d.keys = append(d.keys, buf[:n*simKey]...)
	})
}

func (d *simDaemon) readKeys() {
	now := d.n.readClock()
	for at := 0; at < len(d.keys); at += simKey {
		k := d.n.sim.key(d.keys[at : at+simKey])
		e := &d.m.entries[k]
		d.reads = append(d.reads, simRead{k, e.live, e.value, now})
	}
	d.keys = d.keys[:0]
}

func (d *simDaemon) reportReads() {
	for i := range d.reads {
		c := d.change(&d.reads[i])
		c.Read = &d.reading
		d.tab.View(func(tx *Tx) { d.reportRead(tx, &d.reads[i]) })
		d.local(&c)
	}
	d.reads = d.reads[:0]
}
