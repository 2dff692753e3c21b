package table

// scan compares the whole map with the table.
func (d *simDaemon) scan() {
	d.scanning = false
	d.scanSome(1 << 20)
	d.scanOn()
}

// scanSome reads some more entries of the current scan, or of a new one. It restarts a scan if
// tombstones were forgotten meanwhile: a tombstone is kept longer than the time between a read and its
// comparison.
func (d *simDaemon) scanSome(limit int) {
	if expired := d.tab.Stats().Expired; !d.scanning || d.scanExpired != expired {
		d.scanExpired = expired
		d.scanning, d.scanPlace, d.scanned = true, 0, d.scanned[:0]
		d.tab.Update((*Tx).BeginScan)
	}
	if len(d.scanned) == 0 {
		d.tab.View(func(tx *Tx) { tx.BeginReading(&d.scanReading) })
	}
	d.scanned, d.scanPlace = d.m.readEntries(d.scanned, d.scanPlace, limit, d.n.readClock())
}

// scanOn compares the entries that were read. After the last entry it looks for keys that the scan did
// not find.
func (d *simDaemon) scanOn() {
	if d.scanSome(0); len(d.scanned) == 0 && d.scanPlace < len(d.m.entries) {
		return
	}
	for i := range d.scanned {
		d.scanOne(&d.scanned[i])
	}
	d.scanned = d.scanned[:0]
	d.tab.Update(func(tx *Tx) {
		for d.scanPlace == len(d.m.entries) && d.scanning {
			d.scanning = tx.EndScan(2)
		}
	})
}

// scanOne compares one entry that was read.
func (d *simDaemon) scanOne(r *simRead) {
	c, s := d.change(r), d.n.sim
	before := d.tab.Stats().ScanFound
	d.tab.Update(func(tx *Tx) {
		d.reportRead(tx, r)
		tx.ScannedAll(&d.scanReading, c.Time, c.Key, c.Value)
	})
	found := d.tab.Stats().ScanFound - before
	if s.trace != nil {
		s.trace("%s scans %s %s, differs: %v", d.n.name, text(c.Key), valueText(c.Value), found > 0)
	}
	s.moves += int(found)
}

// readEntries reads up to limit entries, beginning at a position of the map. It does not read a key
// that is created before that position.
func (m *simMap) readEntries(to []simRead, place, limit int, at int64) ([]simRead, int) {
	for ; place < len(m.entries) && limit > 0; place++ {
		if e := &m.entries[place]; e.live {
			to = append(to, simRead{place, true, e.value, at})
			limit--
		}
	}
	return to, place
}
