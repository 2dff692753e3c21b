package kmap

import (
	"errors"

	"golang.org/x/sys/unix"

	"mapsync/syncd/table"
)

// displaceChunk is the number of refused records for which the syncer searches victims under one
// hold of the table's lock. The table divides a long search further.
const displaceChunk = 64

// displace frees space for the records that a full map refused in the burst just written. For each
// such record the table selects an entry of a peer, and displace deletes it from the kernel map.
// The next burst writes the refused records with a victim first. A burst has at most one victim for each
// refused record, so there are at most as many deletes as writes. The search for a victim may examine every
// record of the table twice, a part of them under each hold of the table's lock.
func (s *Syncer) displace(b *Batch) error {
	if s.m.zero != nil {
		return nil // an array has no index for the refused records
	}
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
	for rest := s.refused; len(rest) > 0; {
		n, err := s.addVictims(b, rest[:min(len(rest), displaceChunk)])
		if err != nil {
			return err
		}
		rest = rest[n:]
	}
	return s.deleteVictims(b)
}

// makeRoom deletes entries of peers from an LRU map with more entries than [table.Options.Room], before the kernel evicts others.
func (s *Syncer) makeRoom(b *Batch) error {
	if s.m.zero != nil {
		return nil
	}
	b.Reset()
	s.pending = s.pending[:0]
	for more := true; more && b.Len() < b.Cap(); {
		var err error
		s.t.Update(func(tx *table.Tx) {
			var rec table.Record
			for n := 0; n < displaceChunk && more && b.Len() < b.Cap() && err == nil; n++ {
				var found bool
				if found, more = tx.MakeRoom(&rec); found {
					more, err = true, s.addVictim(b, &rec)
				}
			}
		})
		if err != nil {
			return err
		}
	}
	return s.deleteVictims(b)
}

// deleteVictims deletes the victims in the batch from the kernel map.
func (s *Syncer) deleteVictims(b *Batch) error {
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
				tx.Displaced(w.ref, now)
			}
		})
	}
	s.mu.Lock()
	s.stats.Displaced += uint64(len(s.pending) - failed)
	s.mu.Unlock()
	return nil
}

// addVictims adds deletes of the entries displaced by the refused records to the batch. It returns the number
// of records whose search is finished.
func (s *Syncer) addVictims(b *Batch, refused []pendingWrite) (n int, err error) {
	s.t.Update(func(tx *table.Tx) {
		var rec table.Record
		for _, w := range refused {
			found, more := tx.Displace(w.ref, w.version, &rec)
			if more {
				return
			}
			n++
			if !found {
				continue
			}
			if err = s.addVictim(b, &rec); err != nil {
				return
			}
		}
	})
	return n, err
}

// addVictim adds the delete of a displaced entry to the batch.
func (s *Syncer) addVictim(b *Batch, rec *table.Record) error {
	if err := b.Add(rec.Key, nil); err != nil {
		return err
	}
	s.pending = append(s.pending, pendingWrite{rec.Ref, rec.Version, true})
	return nil
}

// refuseAbsent refuses those records of noRoom of whose key the map has no entry.
func (s *Syncer) refuseAbsent(b *Batch) error {
	for list := s.noRoom; len(list) > 0; {
		n := min(len(list), len(s.found))
		keys := s.keys[:0]
		for _, i := range list[:n] {
			keys = append(keys, b.key(i)...)
		}
		err := s.m.lookupEntries(keys, func(i int, _, _ []byte, found bool) {
			if !found {
				b.refuse(list[i])
			}
		})
		if err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}
