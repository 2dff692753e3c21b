package table

import "time"

// SetMap sets the options that depend on the kernel map: MaxEntries, MaxLive, MaxEvicted, MaxTombstones,
// LRU, Room and Timers. It ignores the other fields of o. The caller calls it before Refill if another
// kernel map of the same layout replaces the former one. Records above a lower limit stay.
func (tx *Tx) SetMap(o Options) {
	o.setDefaults()
	opt := &tx.t.opt
	opt.MaxEntries, opt.MaxLive, opt.MaxEvicted, opt.MaxTombstones = o.MaxEntries, o.MaxLive, o.MaxEvicted, o.MaxTombstones
	opt.LRU, opt.Room, opt.Timers, opt.HasTimer = o.LRU, o.Room, o.Timers, o.HasTimer
	tx.t.admitted = 0 // counted under the former limit
}

// isMask reports whether a mask has the size of a value, or is nil.
func (o *Options) isMask(mask []byte) bool { return mask == nil || len(mask) == o.ValueSize }

// setDefaults replaces zero values with their defaults.
func (o *Options) setDefaults() {
	if o.AdoptVersion == 0 {
		o.AdoptVersion = AdoptedVersion
	}
	if o.TombstoneTTL == 0 {
		o.TombstoneTTL = DefaultTombstoneTTL
	}
	if o.TombstoneGrace == 0 {
		o.TombstoneGrace = DefaultTombstoneGrace
	}
	if o.MaxTombstones == 0 {
		o.MaxTombstones = max(2*o.MaxEntries, DefaultMaxTombstones)
	}
	if o.EvictedTTL == 0 {
		o.EvictedTTL = DefaultEvictedTTL
	}
	if o.MaxEvicted == 0 {
		o.MaxEvicted = o.MaxEntries
	}
	if o.MaxEvicted == 0 {
		o.MaxEvicted = DefaultMaxEvicted
	}
}

// KeySize returns the size of a key in bytes.
func (t *Table) KeySize() int { return t.opt.KeySize }

// ValueSize returns the size of a value in bytes.
func (t *Table) ValueSize() int { return t.opt.ValueSize }

// TombstoneTTL returns the lifetime of a tombstone that not every node has acknowledged.
func (t *Table) TombstoneTTL() time.Duration { return t.opt.TombstoneTTL }

// Self returns the owner of local changes.
func (t *Table) Self() Owner { return t.opt.Self }
