package tabletest

import (
	"errors"

	"mapsync/syncd/table"
)

var errMapFull = errors.New("map full")

// syncer writes dirty records into the kernel map and rereads the keys that the table requests. The
// steps are in the order of syncd/kmap and do not overlap.
type syncer struct {
	phase   phase
	writer  *table.Cursor // nil: no map is attached
	batch   []mapWrite
	refused []mapWrite // writes that a full map refused
	keys    []byte     // keys with pending rereads
	reads   []mapRead
	reading table.Reading
}

// phase is the next step of a syncer.
type phase uint8

const (
	phaseFill phase = iota
	phaseWrite
	phaseReport
	phaseVictims
	phaseDrop
	phaseDropped
	phaseTake
	phaseRead
	phaseAnswer
)

type mapWrite struct {
	key     int
	value   Value
	dead    bool
	done    bool
	raced   bool // the load balancer wrote the key, and the table has not received the event
	at      int  // time at which the record was taken, in writes so far
	err     error
	ref     table.Ref
	version table.Version
}

func (d *Daemon) openSyncer() {
	d.phase, d.batch, d.refused, d.keys, d.reads = phaseFill, d.batch[:0], d.refused[:0], d.keys[:0], d.reads[:0]
	d.writer = d.tab.NewCursor(d.applied())
}

func (d *Daemon) closeSyncer() {
	if d.writer != nil {
		d.writer.Close()
		d.writer = nil
	}
}

// work does the next step. A step that can be divided handles at most limit keys.
func (d *Daemon) work(limit int) {
	switch d.phase {
	case phaseFill:
		d.take(d.n.burst)
		d.phase = phaseWrite
	case phaseWrite:
		if d.write(limit); len(d.batch) == 0 || d.batch[len(d.batch)-1].done {
			d.phase = phaseReport
		}
	case phaseReport:
		d.report(nil)
		d.phase = phaseTake
		if len(d.refused) > 0 {
			d.phase = phaseVictims
		}
	case phaseVictims:
		d.victims()
		d.phase = phaseDrop
	case phaseDrop:
		if d.write(limit); len(d.batch) == 0 || d.batch[len(d.batch)-1].done {
			d.phase = phaseDropped
		}
	case phaseDropped:
		d.dropped()
		d.phase = phaseTake
	case phaseTake:
		d.takeRereads(64)
		d.phase = phaseRead
		if len(d.keys) == 0 {
			d.phase = phaseFill
		}
	case phaseRead:
		d.readKeys()
		d.phase = phaseAnswer
	case phaseAnswer:
		d.reportReads()
		d.phase = phaseFill
	}
}

// idle reports whether the syncer has no work.
func (d *Daemon) idle() bool {
	if d.phase != phaseFill {
		return false
	}
	st := d.stats()
	return st.Dirty == st.Failed && d.internals().Rereads(d.tab) == 0 && d.applied() == d.head()
}

// take lets the writer take up to limit records.
func (d *Daemon) take(limit int) {
	world := d.n.world
	d.tab.View(func(tx *table.Tx) {
		var r table.Record
		for len(d.batch) < limit && tx.NextDirty(d.writer, &r) {
			w := mapWrite{key: world.Key(r.Key), dead: r.Delete, ref: r.Ref, version: r.Version}
			copy(w.value[:], r.Value)
			if world.Model != nil {
				w.raced, w.at = world.Model.pending(d, w.key), world.Model.numbers
			}
			d.batch = append(d.batch, w)
		}
	})
}

// write writes up to limit of the taken records to the kernel map.
func (d *Daemon) write(limit int) {
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

func (d *Daemon) apply(w *mapWrite) {
	world := d.n.world
	switch e := &d.m.entries[w.key]; {
	case w.dead:
		if world.trace != nil {
			world.trace("%s writes %s: delete", d.n.Name, world.name(w.key))
		}
	case d.n.faulty != nil && d.n.faulty():
		w.err = errors.New("no memory")
		return
	case !e.live && d.n.room > 0 && d.m.n >= d.n.room && !d.n.lru:
		w.err = errMapFull
		return
	case world.trace != nil:
		world.trace("%s writes %s %s", d.n.Name, world.name(w.key), valueText(w.value[:]))
	}
	world.moves++
	if world.Model != nil && d.phase != phaseDrop {
		world.Model.checkWrite(d, w)
	}
	if w.dead {
		d.m.drop(w.key)
		return
	}
	v, e := w.value, &d.m.entries[w.key]
	if e.live && d.n.opt.Carried != nil {
		v[localByte] = e.value[localByte]
	}
	if !e.live && d.n.lru && d.m == d.n.Map && d.n.room > 0 && d.m.n >= d.n.room {
		d.n.evict(w.key, 0, table.ContextOwn, !world.blind, 0)
	}
	d.m.set(w.key, v)
	if world.keysOnly {
		d.n.emit(event{key: w.key, op: table.OpUpdate, ctx: table.ContextOwn}, 0)
	}
}

// report reports the writes to the table, after it has written the remaining records. With an error it
// reports that no record was written.
func (d *Daemon) report(err error) {
	if err == nil {
		d.write(len(d.batch))
	}
	d.refused = d.refused[:0]
	d.tab.Update(func(tx *table.Tx) {
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
func (d *Daemon) victims() {
	world := d.n.world
	d.tab.Update(func(tx *table.Tx) {
		var r table.Record
		for _, w := range d.refused {
			if tx.Displace(w.ref, w.version, &r) {
				d.batch = append(d.batch, mapWrite{key: world.Key(r.Key), dead: true, ref: r.Ref, version: r.Version})
				world.notef("%s displaces %s for %s", d.n.Name, trimmed(r.Key), world.name(w.key))
			}
		}
	})
	d.refused = d.refused[:0]
}

func (d *Daemon) dropped() {
	now := d.n.clock()
	d.tab.Update(func(tx *table.Tx) {
		for i := range d.batch {
			tx.Displaced(d.batch[i].ref, d.batch[i].version, now)
		}
	})
	d.batch = d.batch[:0]
}

// takeRereads takes keys with pending rereads, readKeys reads them, and reportReads reports the
// results.
func (d *Daemon) takeRereads(limit int) {
	var buf [64 * keySize]byte
	d.tab.Update(func(tx *table.Tx) {
		tx.BeginReading(&d.reading)
		n := tx.TakeRereads(buf[:min(limit, 64)*keySize])
		d.keys = append(d.keys, buf[:n*keySize]...)
	})
}

func (d *Daemon) readKeys() {
	now := d.n.readClock()
	for at := 0; at < len(d.keys); at += keySize {
		k := d.n.world.Key(d.keys[at : at+keySize])
		e := &d.m.entries[k]
		d.reads = append(d.reads, mapRead{k, e.live, e.value, now})
	}
	d.keys = d.keys[:0]
}

func (d *Daemon) reportReads() {
	for i := range d.reads {
		c := d.change(&d.reads[i])
		c.Read = &d.reading
		d.tab.View(func(tx *table.Tx) { d.reportRead(tx, &d.reads[i]) })
		d.local(&c)
	}
	d.reads = d.reads[:0]
}
