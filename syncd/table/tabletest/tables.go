package tabletest

import "mapsync/syncd/table"

// Tables creates tables. It uses the memory of tables that were released. A run uses many tables for a
// short time. Most of the cost of New is memory that small tables never touch. One goroutine uses it.
// All tables that it has returned since the last Release stay valid.
type Tables struct {
	internals   Internals // creates tables from the memory of others
	used, spare []*table.Table
}

// NewTables returns a Tables without memory of earlier tables.
func NewTables(in Internals) *Tables { return &Tables{internals: in} }

// get returns an empty table. It ends the test if the options are invalid.
func (p *Tables) get(tb interface{ Fatal(...any) }, o table.Options) *table.Table {
	var old *table.Table
	if last := len(p.spare) - 1; last >= 0 && o.KeySize == keySize { // the spare tables have this size
		old = p.spare[last]
		p.spare = p.spare[:last]
	}
	t, err := p.internals.New(o, old)
	if err != nil {
		tb.Fatal(err)
	}
	if o.KeySize == keySize {
		p.used = append(p.used, t)
	}
	return t
}

// Release takes all tables back. The caller may not use them afterwards.
func (p *Tables) Release() {
	p.spare = append(p.spare, p.used...)
	p.used = p.used[:0]
}

// stats returns the gauges and counters of the table. The table updates them with each change.
func (d *Daemon) stats() *table.Stats { return d.internals().Stats(d.tab) }

// head returns the position of the newest change in the table.
func (d *Daemon) head() (position uint64) {
	d.tab.View(func(tx *table.Tx) { position = tx.Head() })
	return position
}

// applied returns the position up to which the map holds the records of the table.
func (d *Daemon) applied() (position uint64) {
	d.tab.View(func(tx *table.Tx) { position = tx.AppliedPosition() })
	return position
}

// floor returns the highest position of a tombstone that the table has forgotten.
func (d *Daemon) floor() (position uint64) {
	d.tab.View(func(tx *table.Tx) { position = tx.Floor() })
	return position
}
