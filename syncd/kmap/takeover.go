package kmap

import (
	"time"

	"mapsync/syncd/table"
)

// Uses shows which entries of the map a data plane uses.
type Uses interface {
	table.Uses
	// Advance is called at least once a second, unless the machine or this process pauses.
	Advance()
	// Missed reports whether a use may have been missed since its last call.
	Missed() bool
}

// maxUpkeepGap is the time between two calls of upkeep above which the machine, or this process, has paused, or the clock
// has stepped. The load balancer may not have run either, so that entries could not be used.
const maxUpkeepGap = 10 * time.Second

// expireTakenOver expires entries after a takeover. The entries of each chunk are deleted from the map at once: a use
// between the check and the delete does not keep an entry, and is at least Options.TakeoverExpiry later than the last one.
func (s *Syncer) expireTakenOver() error {
	now := s.opts.Now()
	gap := time.Duration(now - s.upkeepAt).Abs()
	s.upkeepAt = now
	if s.opts.Uses != nil {
		s.opts.Uses.Advance()
	}
	var due bool
	s.t.Update(func(tx *table.Tx) {
		if due = tx.ObserveTakeover(now); gap > maxUpkeepGap {
			tx.PostponeTakeover(now)
		}
	})
	if !due {
		return nil
	}
	var uses table.Uses
	if s.opts.Uses != nil {
		uses = s.opts.Uses
		if s.opts.Uses.Missed() {
			s.t.Update(func(tx *table.Tx) { tx.PostponeTakeover(now) })
		}
	}
	for more := true; more; {
		var expired int
		s.t.Update(func(tx *table.Tx) { expired, more = tx.ExpireTakenOver(now, uses, chunk) })
		if expired == 0 {
			continue
		}
		if _, err := s.pass(); err != nil {
			return err
		}
	}
	return nil
}
