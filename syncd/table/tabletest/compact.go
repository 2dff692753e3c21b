package tabletest

// compact compacts all tombstones of a daemon's table that are settled, as if enough time had
// passed. syncd compacts a tombstone after 1 s.
func (d *Daemon) compact() {
	d.n.world.compacted += d.internals().Compact(d.tab, d.n.clock())
}

// compacts reports whether compact would change any tombstone.
func (d *Daemon) compacts() bool { return d.internals().Compacts(d.tab, d.n.clock()) }
