package daemon

import (
	"time"

	"mapsync/syncd/reference"
	"mapsync/syncd/table"
)

// releaseInterval is the minimum time between two searches for numbers that nothing uses.
const releaseInterval = 5 * time.Second

// release makes numbers free if many are in use.
func (r *referenceReader) release(n *reference.Names) {
	if n.Crowded() && time.Since(r.released) >= releaseInterval {
		r.released = time.Now()
		n.Release(r.of.daemon.markNumbers(n))
	}
}

// markNumbers returns a function that marks the numbers of all tables that belong to names. It fails while a table has entries that are not
// adopted yet, or is converted, and while a map has yet to follow changed ids: former contents still give out their numbers.
func (d *Daemon) markNumbers(names *reference.Names) func(mark func(uint32)) bool {
	return func(mark func(uint32)) bool {
		for _, m := range d.replicas() {
			m.mu.Lock()
			t, loading := m.table, m.state == MapLoading
			m.mu.Unlock()
			if t == nil {
				continue
			}
			if tr := translationOf(t); tr != nil && (loading || tr.Pending() || !markTable(t, tr, names, mark)) {
				return false
			}
		}
		return true
	}
}

func markTable(t *table.Table, tr *reference.Translation, names *reference.Names, mark func(uint32)) bool {
	cursor := t.NewCursor(0)
	defer cursor.Close()
	unadopted := false
	for more := true; more && !unadopted; {
		t.View(func(tx *table.Tx) {
			unadopted = tx.Unadopted()
			var rec table.Record
			for range listChunk {
				if more = tx.Next(cursor, &rec); !more {
					return
				}
				tr.Mark(names, rec.Key, rec.Value, mark)
			}
		})
	}
	return !unadopted
}
