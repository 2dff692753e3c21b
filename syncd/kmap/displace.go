package kmap

import (
	"errors"

	"golang.org/x/sys/unix"

	"mapsync/syncd/table"
)

// displaceChunk is how many victims are searched for under the table's lock at a time.
const displaceChunk = 64

// displace makes way for what a full map refused in the burst just written: for each
// such record the table names an entry of a peer that leaves the map, and those are
// deleted. The refused come again with the next burst. Since there is at most one victim for
// each refused record of a burst, it costs at most as much again as the burst did.
func (s *Syncer) displace(b *Batch) error {
	s.refused = s.refused[:0]
	for i := range s.pending {
		if !s.pending[i].remove && errors.Is(b.Err(i), unix.E2BIG) {
			s.refused = append(s.refused, s.pending[i])
		}
	}
	if len(s.refused) == 0 {
		return nil
	}
	b.Reset()
	s.pending = s.pending[:0]
	for rest := s.refused; len(rest) > 0; rest = rest[min(len(rest), displaceChunk):] {
		if err := s.victims(b, rest[:min(len(rest), displaceChunk)]); err != nil {
			return err
		}
	}
	if b.Len() == 0 {
		return nil
	}
	failed, err := s.m.Apply(b)
	if err != nil {
		return err
	}
	now := s.opts.Now()
	for rest := s.pending; len(rest) > 0; rest = rest[min(len(rest), chunk):] {
		s.t.Update(func(tx *table.Tx) {
			for _, w := range rest[:min(len(rest), chunk)] {
				tx.Displaced(w.ref, w.version, now)
			}
		})
	}
	s.mu.Lock()
	s.stats.Displaced += uint64(len(s.pending) - failed)
	s.mu.Unlock()
	return nil
}

// victims puts deletes of what is to make way for the refused records into the batch.
func (s *Syncer) victims(b *Batch, refused []write) (err error) {
	s.t.Update(func(tx *table.Tx) {
		var rec table.Record
		for _, w := range refused {
			if !tx.Displace(w.ref, w.version, &rec) {
				continue
			}
			if err = b.Add(rec.Key, nil); err != nil {
				return
			}
			s.pending = append(s.pending, write{rec.Ref, rec.Version, true})
		}
	})
	return err
}
