package table

// scan reads the whole map against the table.
func (d *simDaemon) scan() {
	d.scanning = false
	d.scanSome(1 << 20)
	d.scanOn()
}

// scanSome reads some more entries of the scan under way, or of a new one: also if tombstones
// were forgotten, which takes longer than from a reading to what is made of it.
func (d *simDaemon) scanSome(limit int) {
	if expired := d.tab.stats.Expired; !d.scanning || d.scanExpired != expired {
		d.scanExpired = expired
		d.scanning, d.scanPlace, d.scanned = true, 0, d.scanned[:0]
		d.tab.Update((*Tx).BeginScan)
	}
	if len(d.scanned) == 0 {
		d.tab.View(func(tx *Tx) { tx.BeginReading(&d.scanReading) })
	}
	d.scanned, d.scanPlace = d.m.walk(d.scanned, d.scanPlace, limit, d.n.readClock())
}

// scanOn compares what was read, and after the last of it looks for what was not met.
func (d *simDaemon) scanOn() {
	if d.scanSome(0); len(d.scanned) == 0 && d.scanPlace < len(d.m.entries) {
		return
	}
	d.tab.Update(func(tx *Tx) {
		for i := range d.scanned {
			c := d.change(&d.scanned[i])
			d.learns(tx, &d.scanned[i])
			found := tx.t.stats.ScanFound
			tx.ScannedAll(&d.scanReading, c.Time, c.Key, c.Value)
			if d.n.sim.trace != nil {
				d.n.sim.trace("%s scans %s %s, differs: %v", d.n.name, text(c.Key), valueText(c.Value), tx.t.stats.ScanFound > found)
			}
			d.n.sim.moves += int(tx.t.stats.ScanFound - found)
		}
		d.scanned = d.scanned[:0]
		for d.scanPlace == len(d.m.entries) && d.scanning {
			d.scanning = tx.EndScan(2)
		}
	})
}

// walk reads up to limit entries from a place on. A key that comes where the walk has been
// is not read.
func (m *simMap) walk(to []simRead, place, limit int, at int64) ([]simRead, int) {
	for ; place < len(m.entries) && limit > 0; place++ {
		if e := &m.entries[place]; e.live {
			to = append(to, simRead{place, true, e.value, at})
			limit--
		}
	}
	return to, place
}
