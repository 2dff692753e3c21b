package kmap

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/syncd/reference"
	"mapsync/syncd/table"
)

// errWithoutID is the result of a write of an entry whose meanings have no id on this node.
const errWithoutID = unix.ENOKEY

// translated returns fn for entries of the map.
func (k *Map) translated(fn ReadFunc) ReadFunc {
	if k.translation == nil {
		return fn
	}
	ks, vs := k.layout.keySize, k.layout.valueSize
	return func(at int64, keys, values []byte) error {
		for i := 0; (i+1)*ks <= len(keys); i++ {
			k.translation.FromKernel(keys[i*ks:][:ks], values[i*vs:][:vs])
		}
		return fn(at, keys, values)
	}
}

// translate replaces the numbers in an entry of the batch by ids, and returns the operation. An entry that the map cannot have is not
// written. If the map has it with an id that means something else now, it is deleted.
func (b *Batch) translate(e []byte, op uint32) uint32 {
	key, value := e[entryKey:][:b.keySize], e[b.valueOffset:][:b.valueSize]
	if op != opUpdate {
		value = nil
	}
	ok, stale := b.translation.ToKernel(key, value)
	switch {
	case ok:
		return op
	case op != opUpdate:
		return opNone // the map has no such key
	}
	b.withoutID = append(b.withoutID, b.n)
	if stale {
		return opDelete
	}
	return opNone
}

// retranslate makes the entries of the map follow changes of the meanings of ids. Entries of peers are written with the ids that their
// meanings have now. Entries of this node stay as they are, which is a change of what they mean: they are read again. An entry whose key has
// another id gets a new key, and its old key is removed. No other node sees that as a delete.
//
// It waits until the entries that the start has found are adopted. Until then, the former meanings apply.
func (s *Syncer) retranslate() error {
	tr := s.m.translation
	if tr == nil || !tr.Pending() {
		return nil
	}
	unadopted := false
	s.t.View(func(tx *table.Tx) { unadopted = tx.Unadopted() })
	if unadopted {
		return nil
	}
	changes := tr.Changes()
	if !changes.Any() {
		changes.Apply()
		return nil
	}
	if tr.InKeys() {
		if err := s.removeOldKeys(changes); err != nil {
			return err
		}
	}
	self, n := s.t.Self(), 0
	var own [][]byte
	s.eachAffected(changes, func(tx *table.Tx, rec *table.Record) {
		n++
		// Records are marked before the ids change, so that a read of their entries proves nothing meanwhile.
		if changes.Affects(rec.Key, nil) || tx.Owner(rec.Owner).Node != self.Node {
			tx.Rewrite(rec.Ref)
			return
		}
		own = append(own, append([]byte(nil), rec.Key...))
	})
	changes.Apply()
	for len(own) > 0 {
		some := own[:min(len(own), chunk)]
		s.t.Update(func(tx *table.Tx) {
			for _, key := range some {
				tx.RequestReread(key)
			}
		})
		own = own[len(some):]
	}
	s.opts.Logger.Info("ids of referenced maps have changed, entries follow", "kernel_map", s.m.info.Name, "entries", n)
	return nil
}

// eachAffected calls fn for each live record with a number whose id changes, with the table locked for writing.
func (s *Syncer) eachAffected(changes *reference.Changes, fn func(tx *table.Tx, rec *table.Record)) {
	cursor := s.t.NewCursor(0)
	defer cursor.Close()
	end := s.t.Stats().Head // records that fn moves are above it
	for more := true; more; {
		s.t.Update(func(tx *table.Tx) {
			var rec table.Record
			for range chunk {
				if more = tx.Next(cursor, &rec) && rec.Position <= end; !more {
					return
				}
				if !rec.Delete && changes.Affects(rec.Key, rec.Value) {
					fn(tx, &rec)
				}
			}
		})
	}
}

// removeOldKeys deletes the entries whose keys have an id that changes.
func (s *Syncer) removeOldKeys(changes *reference.Changes) error {
	b := s.m.Batch()
	var failure error
	flush := func() {
		if _, err := s.m.Apply(b); err != nil && failure == nil {
			failure = fmt.Errorf("remove keys with former ids: %w", err)
		}
		b.Reset()
	}
	var keys [][]byte
	s.eachAffected(changes, func(_ *table.Tx, rec *table.Record) {
		if changes.Affects(rec.Key, nil) {
			keys = append(keys, append([]byte(nil), rec.Key...))
		}
	})
	for _, key := range keys {
		if b.Len() == b.Cap() {
			flush()
		}
		if err := b.Add(key, nil); err != nil {
			return err
		}
	}
	flush()
	return failure
}

// translationInterval is the interval in which the syncer looks for changed ids.
const translationInterval = 100 * time.Millisecond
