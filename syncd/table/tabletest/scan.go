package tabletest

import "mapsync/syncd/table"

// scan compares the whole map with the table. A scan in progress starts again.
func (d *Daemon) scan() {
	d.scanning = false
	d.scanSome(1 << 20)
	d.scanOn()
}

// scanSome reads some more entries of the current scan, or of a new one. It restarts a scan if
// tombstones were forgotten meanwhile: a tombstone is kept longer than the time between a read and its
// comparison. A limit of 0 only checks whether it must restart.
func (d *Daemon) scanSome(limit int) {
	if expired := d.stats().Expired; !d.scanning || d.scanExpired != expired {
		d.scanExpired = expired
		d.scanning, d.scanPlace, d.scanned = true, 0, d.scanned[:0]
		d.tab.Update(func(tx *table.Tx) { tx.BeginScan(d.n.clock()) })
		d.scanBegan = d.n.world.Now
	}
	if len(d.scanned) == 0 {
		d.tab.View(func(tx *table.Tx) { tx.BeginReading(&d.scanReading) })
	}
	d.scanned, d.scanPlace = d.m.readEntries(d.scanned, d.scanPlace, limit, d.n.readClock())
}

// scanOn compares the entries that were read. After the last entry it looks for keys that the scan did
// not find. Without entries that were read, it does nothing, except at the end of the map.
func (d *Daemon) scanOn() {
	if d.scanSome(0); len(d.scanned) == 0 && d.scanPlace < len(d.m.entries) {
		return
	}
	d.tab.Update(func(tx *table.Tx) {
		for i := range d.scanned {
			d.compareEntry(tx, &d.scanned[i])
		}
		d.scanned = d.scanned[:0]
		for d.scanPlace == len(d.m.entries) && d.scanning {
			if d.scanning = tx.EndScan(2); !d.scanning {
				d.scanDone = d.scanBegan
			}
		}
	})
}

// compareEntry compares one entry that was read with the table. A difference counts as progress.
func (d *Daemon) compareEntry(tx *table.Tx, r *mapRead) {
	c, w := d.change(r), d.n.world
	d.reportRead(tx, r)
	before := d.stats().ScanFound
	tx.ScannedAll(&d.scanReading, c.Time, c.Key, c.Value)
	found := d.stats().ScanFound - before
	if found > 0 && w.Model != nil {
		w.Model.found(d.n, tx, r)
	}
	if w.trace != nil {
		w.trace("%s scans %s %s, differs: %v", d.n.Name, w.name(r.key), d.valueText(c.Value), found > 0)
	}
	w.moves += int(found)
}

// readEntries reads up to limit entries, beginning at a position of the map. It does not read a key that
// is created before that position. An iterator over a hash map of the kernel has the same gap. It
// returns the position after the last entry.
func (m *Map) readEntries(to []mapRead, place, limit int, at int64) ([]mapRead, int) {
	for ; place < len(m.entries) && limit > 0; place++ {
		if e := &m.entries[place]; e.live {
			to = append(to, mapRead{place, true, e.value, at})
			limit--
		}
	}
	return to, place
}
