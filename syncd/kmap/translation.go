package kmap

import (
	"bytes"
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

// retranslate makes the entries of the map follow changes of the meanings of ids. Entries that syncd has written keep their meaning, and are
// written with the ids that their meanings have now. Entries of the load balancer of this node stay as they are, which is a change of what
// they mean: they are read again. An entry whose key has another id gets a new key, and its old key is removed. No other node sees that as
// a delete. See [followers.fresh] for entries that the load balancer has written at the time of the change.
//
// It waits until the entries that the start has found are adopted. Until then, the former meanings apply.
func (s *Syncer) retranslate() error {
	tr := s.m.translation
	if s.followed != nil { // again, for changes that were on their way into the table
		s.followed.rereadLate()
		s.followed = nil
	}
	if tr == nil || !tr.Pending() {
		return nil
	}
	unadopted := false
	s.t.View(func(tx *table.Tx) { unadopted = tx.Unadopted() })
	if unadopted {
		return nil
	}
	f := &followers{s: s, Changes: tr.Changes()}
	if !f.Any() {
		f.Apply()
		return nil
	}
	f.since = f.Since()
	if tr.InKeys() {
		if removed, err := f.removeOldKeys(); !removed {
			return err // the next call repeats it, with the former contents
		}
	}
	n := 0
	f.began = s.t.Stats().Head
	f.each(0, func(tx *table.Tx, rec *table.Record) {
		if rec.Delete {
			return
		}
		n++
		// Records are marked before the ids change, so that a read of their entries proves nothing meanwhile.
		switch after, fresh := f.fresh(tx, rec); {
		case fresh:
			f.reread = append(f.reread, bytes.Clone(rec.Key), after)
		case f.Affects(rec.Key, nil) || !f.mine(tx, rec):
			tx.Rewrite(rec.Ref)
		default:
			f.reread = append(f.reread, bytes.Clone(rec.Key))
		}
	})
	f.Apply()
	f.rereadLate()
	s.followed = f
	s.opts.Logger.Info("ids of referenced maps have changed, entries follow", "kernel_map", s.m.info.Name, "entries", n)
	return nil
}

// followers are the entries that follow changes of ids.
type followers struct {
	*reference.Changes
	s      *Syncer
	since  int64    // Changes.Since
	began  uint64   // position of the table when it was searched first
	reread [][]byte // keys
}

// mine reports whether the load balancer of this node has written the entry of a record.
func (f *followers) mine(tx *table.Tx, rec *table.Record) bool {
	return f.s.t.WritesEntriesOf(tx.Owner(rec.Owner))
}

// fresh reports whether the kernel map has an entry for the key of a record that means another key after the changes, and that the load
// balancer has written after the last reading that found the former meanings. It may have written it with the new meaning. Both keys are
// read again, and syncd neither moves nor removes the entry. after is the other key.
func (f *followers) fresh(tx *table.Tx, rec *table.Record) (after []byte, yes bool) {
	if rec.Delete || !f.mine(tx, rec) || !f.Affects(rec.Key, nil) || int64(table.OriginalVersion(rec.Version)) <= f.since && f.Known(rec.Key) {
		return nil, false
	}
	after, ok := f.After(rec.Key)
	return after, ok && !bytes.Equal(after, rec.Key)
}

// each calls fn for each record above a position that has a number whose id changes, with the table locked for writing.
func (f *followers) each(above uint64, fn func(tx *table.Tx, rec *table.Record)) {
	cursor := f.s.t.NewCursor(above)
	defer cursor.Close()
	end := f.s.t.Stats().Head // records that fn moves are above it
	for more := true; more; {
		f.s.t.Update(func(tx *table.Tx) {
			var rec table.Record
			for range chunk {
				if more = tx.Next(cursor, &rec) && rec.Position <= end; !more {
					return
				}
				if f.Affects(rec.Key, rec.Value) {
					fn(tx, &rec)
				}
			}
		})
	}
}

// removeOldKeys deletes the entries whose keys have an id that changes. It reports whether all are removed.
func (f *followers) removeOldKeys() (removed bool, err error) {
	b := f.s.m.Batch()
	var keys [][]byte
	f.each(0, func(tx *table.Tx, rec *table.Record) {
		if _, fresh := f.fresh(tx, rec); f.Affects(rec.Key, nil) && !fresh && (!rec.Delete || rec.Dirty) {
			keys = append(keys, bytes.Clone(rec.Key))
		}
	})
	for len(keys) > 0 {
		b.Reset()
		some := keys[:min(len(keys), b.Cap())]
		for _, key := range some {
			if err := b.Add(key, nil); err != nil {
				return false, err
			}
		}
		if _, err := f.s.m.Apply(b); err != nil {
			return false, err
		}
		for i := range b.Len() {
			if b.transient(i) { // another error is that of a key that the map cannot have
				return false, nil
			}
		}
		keys = keys[len(some):]
	}
	return true, nil
}

// rereadLate reads the entries of f.reread again, and those of the load balancer that have changed since the search began: they may have been
// read with the former ids.
func (f *followers) rereadLate() {
	f.each(f.began, func(tx *table.Tx, rec *table.Record) {
		if !rec.Delete && !rec.Dirty && f.mine(tx, rec) {
			f.reread = append(f.reread, bytes.Clone(rec.Key))
		}
	})
	for keys := f.reread; len(keys) > 0; {
		some := keys[:min(len(keys), chunk)]
		f.s.t.Update(func(tx *table.Tx) {
			for _, key := range some {
				tx.RequestReread(key)
			}
		})
		keys = keys[len(some):]
	}
	f.reread = nil
}

// translationInterval is the interval in which the syncer looks for changed ids.
const translationInterval = 100 * time.Millisecond
