package tabletest

import (
	"errors"

	"mapsync/syncd/table"
)

// errMapFull is the kernel's E2BIG: a hash map without room for another entry. It leads to a
// displacement.
var errMapFull = errors.New("map full")

// syncer writes dirty records into the kernel map and rereads the keys that the table requests. The
// steps are in the order of syncd/kmap and do not overlap.
//
// Each field belongs to a phase: batch to the writes and the victims, keys and reads to the rereads.
// Other actions of the world come between two phases, so a record may change after it was taken, written
// or read.
type syncer struct {
	phase   phase
	writer  *table.Cursor // nil: no map is attached
	batch   []mapWrite
	refused []mapWrite // writes that a full map refused
	keys    []byte     // keys with pending rereads
	reads   []mapRead
	reading table.Reading
	// returnBarrier has the unwritten records at the end of a drain; nil: none.
	returnBarrier *table.WriteBarrier
}

// phase is the next step of a syncer.
type phase uint8

// The phases follow each other in this order. A phase without work is skipped or does nothing.
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

// mapWrite is a write of the kernel map: a dirty record, or the delete of a victim. It has the record as
// it was taken.
type mapWrite struct {
	key     int // number of the key in the world
	value   Value
	dead    bool      // the record is a tombstone: the entry is deleted
	noRoom  bool      // the map must not get another entry: only a present one is replaced
	done    bool      // the write was tried
	raced   bool      // the load balancer wrote the key, and the table has not received the event
	at      int       // time at which the record was taken, in writes so far
	err     error     // why the write failed; nil: it did not
	ref     table.Ref // identifies the record to the table, together with version
	version table.Version
}

// openSyncer begins at the applied position, so records that a former map did not get are written again.
func (d *Daemon) openSyncer() {
	d.phase, d.batch, d.refused, d.keys, d.reads = phaseFill, d.batch[:0], d.refused[:0], d.keys[:0], d.reads[:0]
	d.writer = d.tab.NewCursor(d.applied())
}

// closeSyncer releases the cursor. Records of an unfinished batch stay dirty.
func (d *Daemon) closeSyncer() {
	if d.writer != nil {
		d.writer.Close()
		d.writer = nil
	}
}

// work does the next step. A step that can be divided handles at most limit keys. A pass consists of all
// phases in order.
func (d *Daemon) work(limit int) {
	switch d.phase {
	case phaseFill:
		d.take(d.n.burst)
		d.phase = phaseWrite
	case phaseWrite:
		if d.write(limit); len(d.batch) == 0 || d.batch[len(d.batch)-1].done {
			d.phase = phaseReport
		}
	// The table gets the results after all writes of the batch.
	case phaseReport:
		d.report(nil)
		d.phase = phaseTake
		if len(d.refused) > 0 || d.n.lru {
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

// idle reports whether the syncer has no work. Failed writes do not count: they wait for a retry.
func (d *Daemon) idle() bool {
	if d.phase != phaseFill {
		return false
	}
	st := d.stats()
	return st.Dirty == st.Failed && d.internals().Rereads(d.tab) == 0 && d.applied() == d.head()
}

// take lets the writer take up to limit records. The records stay dirty until report.
func (d *Daemon) take(limit int) {
	world := d.n.world
	d.tab.View(func(tx *table.Tx) {
		var r table.Record
		for len(d.batch) < limit && tx.NextDirty(d.writer, &r) {
			w := mapWrite{key: d.keyNumber(r.Key), value: d.value(r.Value), dead: r.Delete, ref: r.Ref, version: r.Version}
			w.noRoom = r.NoRoom
			// The model decides later with it whether the write was allowed to overwrite an entry.
			if world.Model != nil {
				w.raced, w.at = world.Model.pending(d, w.key), world.Model.numbers
			}
			d.batch = append(d.batch, w)
		}
	})
}

// write writes up to limit of the taken records to the kernel map. A write that was tried is not
// repeated.
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

// apply tries one write of the kernel map. It fails with an injected fault, or if a hash map is full. An
// LRU map evicts another entry instead. The own-write marks of syncd hide the write from the hooks,
// unless hooks report keys only.
func (d *Daemon) apply(w *mapWrite) {
	world := d.n.world
	switch e := &d.m.entries[w.key]; {
	case w.dead:
		if world.trace != nil {
			world.trace("%s writes %s: delete", d.n.Name, world.name(w.key))
		}
	case w.noRoom && !e.live:
		w.err = errMapFull
		return
	case d.n.faulty != nil && d.n.faulty():
		w.err = errors.New("no memory")
		return
	case !e.live && d.n.room > 0 && d.m.n >= d.n.room && !d.n.lru:
		w.err = errMapFull
		return
	case world.trace != nil:
		world.trace("%s writes %s %s", d.n.Name, world.name(w.key), valueText(w.value[:]))
	}
	// A failed write does not count as progress.
	world.moves++
	if world.Model != nil && d.phase != phaseDrop {
		world.Model.checkWrite(d, w)
	}
	if w.dead {
		d.m.drop(w.key)
		return
	}
	v, e := w.value, &d.m.entries[w.key]
	// The local byte belongs to the entry, not to the record.
	if e.live && d.n.opt.Carried != nil {
		v[localByte] = e.value[localByte]
	}
	v[timerByte] = 0 // each update sets it to zero
	if !e.live && d.n.lru && d.m == d.n.Map && d.n.room > 0 && d.m.n >= d.n.room {
		d.n.evict(w.key, 0, table.ContextOwn, !world.blind, 0)
	}
	d.m.set(w.key, v)
	if world.keysOnly {
		d.n.emit(event{key: w.key, op: table.OpUpdate, ctx: table.ContextOwn}, 0)
	}
}

// report reports the writes to the table, after it has written the remaining records. With an error it
// reports that no record was written. The applied position advances with it, so peers get their
// acknowledgement.
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
			// A victim may be displaced for each of these.
			if errors.Is(w.err, errMapFull) && !w.dead {
				d.refused = append(d.refused, *w)
			}
		}
		tx.SetApplied(d.writer.Position())
	})
	d.batch = d.batch[:0]
}

// victims selects the entries that are displaced for the records that a full map refused. They are
// deleted before anything else is written, as Displace requires.
func (d *Daemon) victims() {
	world := d.n.world
	d.tab.Update(func(tx *table.Tx) {
		var r table.Record
		for _, w := range d.refused {
			found, more := tx.Displace(w.ref, w.version, &r)
			for more {
				found, more = tx.Displace(w.ref, w.version, &r)
			}
			if found {
				d.addVictim(&r)
				world.notef("%s displaces %s for %s", d.n.Name, world.name(d.keyNumber(r.Key)), world.name(w.key))
			}
		}
		for more := true; more; {
			var found bool
			if found, more = tx.MakeRoom(&r); found {
				more = true
				d.addVictim(&r)
				world.notef("%s displaces %s for entries of its load balancer", d.n.Name, world.name(d.keyNumber(r.Key)))
			}
		}
	})
	d.refused = d.refused[:0]
}

// fills returns the number of entries up to which syncd fills an LRU map, 0 for no limit. Some nodes have a limit.
func (n *Node) fills() int {
	if n.ID%2 == 1 {
		return 0
	}
	return n.room - n.room/4
}

func (d *Daemon) addVictim(r *table.Record) {
	d.batch = append(d.batch, mapWrite{key: d.keyNumber(r.Key), dead: true, ref: r.Ref, version: r.Version})
}

// dropped reports the deletes of victims to the table.
func (d *Daemon) dropped() {
	now := d.n.clock()
	d.tab.Update(func(tx *table.Tx) {
		for i := range d.batch {
			tx.Displaced(d.batch[i].ref, now)
		}
	})
	d.batch = d.batch[:0]
}

// takeRereads takes keys with pending rereads, readKeys reads them, and reportReads reports the results.
// The reading begins before the keys are read. A value that another change has overtaken is then
// ignored.
func (d *Daemon) takeRereads(limit int) {
	size := layouts[d.layout].size
	buf := make([]byte, min(limit, 64)*size)
	d.tab.Update(func(tx *table.Tx) {
		tx.BeginReading(&d.reading)
		n := tx.TakeRereads(buf)
		d.keys = append(d.keys, buf[:n*size]...)
	})
}

// readKeys reads the keys. The results are entered later, so that they may be outdated by then.
func (d *Daemon) readKeys() {
	now := d.n.readClock()
	size := layouts[d.layout].size
	for at := 0; at < len(d.keys); at += size {
		k := d.keyNumber(d.keys[at : at+size])
		e := &d.m.entries[k]
		d.reads = append(d.reads, mapRead{k, e.live, e.value, now})
	}
	d.keys = d.keys[:0]
}

// reportReads enters the results. reportRead passes each of them to the model, too.
func (d *Daemon) reportReads() {
	for i := range d.reads {
		c := d.change(&d.reads[i])
		c.Read = &d.reading
		d.tab.View(func(tx *table.Tx) { d.reportRead(tx, &d.reads[i]) })
		d.local(&c)
	}
	d.reads = d.reads[:0]
}
