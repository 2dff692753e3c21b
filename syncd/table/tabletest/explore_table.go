package tabletest

import "mapsync/syncd/table"

// tableEncoder adds the state of a daemon's table to an exploreState.
type tableEncoder struct {
	x *exploreState
	d *Daemon
}

// addTable adds the table of a daemon.
func (x *exploreState) addTable(d *Daemon) {
	d.internals().Encode(d.tab, tableEncoder{x, d}, x.cpus > 1)
}

// addReading adds a reading of a table.
func (x *exploreState) addReading(d *Daemon, r *table.Reading) {
	d.internals().EncodeReading(d.tab, r, tableEncoder{x, d})
}

func (e tableEncoder) Int(v int) { e.x.n(v) }

func (e tableEncoder) Bool(all ...bool) { e.x.is(all...) }

func (e tableEncoder) Version(v table.Version) { e.x.ahead(e.d, v) }

func (e tableEncoder) Time(at int64) { e.x.time(at) }

func (e tableEncoder) Position(p uint64) { e.x.position(p) }

func (e tableEncoder) Owner(o table.Owner) {
	e.x.n(int(o.Node[0]))
	e.x.rank(kindIncarnation, o.Incarnation)
}

func (e tableEncoder) Value(v []byte) { e.x.value(Value(v)) }
