package tabletest

import "mapsync/syncd/table"

// tableEncoder adds the state of a daemon's table to an exploreState. It implements Encoder. The table
// chooses what to add, and the encoder replaces numbers by their ranks.
type tableEncoder struct {
	x *exploreState
	d *Daemon
}

// addTable adds the table of a daemon.
func (x *exploreState) addTable(d *Daemon) {
	d.internals().Encode(d.tab, tableEncoder{x, d}, x.cpus > 1)
}

// addReading adds a reading of a table. The marks of a reading decide whether its values count.
func (x *exploreState) addReading(d *Daemon, r *table.Reading) {
	d.internals().EncodeReading(d.tab, r, tableEncoder{x, d})
}

// Int adds a number as it is.
func (e tableEncoder) Int(v int) { e.x.n(v) }

// Bool adds flags.
func (e tableEncoder) Bool(all ...bool) { e.x.is(all...) }

// Version adds a version by its rank, and by the clock if it is ahead of that.
func (e tableEncoder) Version(v table.Version) { e.x.ahead(e.d, v) }

// Time adds a time by its rank.
func (e tableEncoder) Time(at int64) { e.x.time(at) }

// Position adds a position by its rank.
func (e tableEncoder) Position(p uint64) { e.x.position(p) }

// Owner adds a node by the first letter of its name, and its incarnation by the rank.
func (e tableEncoder) Owner(o table.Owner) {
	e.x.n(int(o.Node[0]))
	e.x.rank(kindIncarnation, o.Incarnation)
}

// Value adds the number of the write that made the value, by its rank.
func (e tableEncoder) Value(v []byte) { e.x.value(e.d.value(v)) }
