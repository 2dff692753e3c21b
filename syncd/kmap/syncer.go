package kmap

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/syncd/table"
)

const (
	// chunk is how many records are handled under the table's lock at a time, and
	// recheckBytes what the keys and values that are read again take at most.
	chunk        = 256
	recheckBytes = 2 << 20
	// gather is how long the writer waits before it looks again: under load it
	// finds many records at once, for a cost that nobody notices at rest.
	gather = 500 * time.Microsecond
	// settlePace is the least time between two lots of new keys that are read
	// again, and settleChunk their size: together they bound what that costs to
	// about 4 % of a core.
	settlePace  = 10 * time.Millisecond
	settleChunk = 1024
	// upkeep is how often tombstones expire and failed writes are considered.
	upkeep = time.Second
	// Pauses between tries of failed writes.
	minBackoff = time.Second
	maxBackoff = 30 * time.Second
)

// SyncerOptions are what [NewSyncer] needs to know besides table and map.
type SyncerOptions struct {
	// Now is the wall clock in nanoseconds, by the same fixed offset from the
	// monotonic clock that capture uses. Nil: [time.Now].
	Now func() int64
	// Logger is told when writes begin and cease to fail. Nil: discarded.
	Logger *slog.Logger
}

// SyncerStats counts what a [Syncer] did since it was made.
type SyncerStats struct {
	Written  uint64 // entries updated in the map
	Deleted  uint64 // entries deleted from the map, or found absent
	Rechecks uint64 // keys read again
	Bursts   uint64 // batches written
	// Displaced counts entries of peers deleted from a full map for newer ones.
	Displaced uint64

	FailedFull   uint64 // writes refused because the map was full
	FailedMemory uint64 // writes refused for want of memory
	FailedBusy   uint64 // writes refused because the map was locked
	FailedOther  uint64 // writes refused for another reason

	LastBurst time.Duration // how long the last batch took in the kernel
	MaxBurst  time.Duration // the longest of all
}

// Syncer keeps one kernel map as its table says: it writes dirty records, reads again
// the keys that the table is unsure of, tries failed writes again, and lets
// tombstones expire.
type Syncer struct {
	t    *table.Table
	m    *Map
	opts SyncerOptions

	cursor  *table.Cursor
	pending []write
	refused []write // of the burst just written, by a full map
	keys    []byte  // of a recheck
	values  []byte
	found   []bool
	reading table.Reading // of a recheck

	settled    int64 // when new keys were looked at last, ns
	backoff    time.Duration
	retryAt    time.Time
	lastFailed int

	mu    sync.Mutex
	stats SyncerStats
}

// write is a record on its way to the kernel.
type write struct {
	ref     table.Ref
	version table.Version
	remove  bool
}

// NewSyncer returns the Syncer of a table and a map, which must have the same sizes.
// For a map that replaced another, call Refill on the table first. A map has one
// Syncer at a time: the Syncer owns its [Batch].
func NewSyncer(t *table.Table, m *Map, o SyncerOptions) (*Syncer, error) {
	if t.KeySize() != m.info.KeySize || t.ValueSize() != m.info.ValueSize {
		return nil, fmt.Errorf("bind table of %d + %d bytes to map %q of %d + %d bytes: sizes differ",
			t.KeySize(), t.ValueSize(), m.info.Name, m.info.KeySize, m.info.ValueSize)
	}
	if o.Now == nil {
		o.Now = func() int64 { return time.Now().UnixNano() }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	lot := min(chunk, recheckBytes/(t.KeySize()+t.ValueSize()))
	return &Syncer{
		t: t, m: m, opts: o, backoff: minBackoff,
		pending: make([]write, 0, m.batch.Cap()),
		keys:    make([]byte, lot*t.KeySize()),
		values:  make([]byte, lot*t.ValueSize()),
		found:   make([]bool, lot),
	}, nil
}

// Run works until ctx is done, and then returns nil. An error is one of the map as a
// whole, such as a map that user space may not write; single entries are retried and
// counted.
func (s *Syncer) Run(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	cancel := s.t.Subscribe(wake)
	defer cancel()
	var from uint64
	s.t.View(func(tx *table.Tx) { from = tx.AppliedPosition() })
	s.cursor = s.t.NewCursor(from)
	defer s.cursor.Close()

	tick := time.NewTicker(upkeep)
	defer tick.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	settle := time.NewTimer(0)
	defer settle.Stop()
	for {
		more, err := s.pass()
		if err != nil {
			return err
		}
		if !more {
			settle.Reset(s.settle())
			select {
			case <-ctx.Done():
			case <-wake:
				pause.Reset(gather)
				select {
				case <-ctx.Done():
				case <-pause.C:
				}
			case <-settle.C:
			case now := <-tick.C:
				s.upkeep(now)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		select {
		case now := <-tick.C:
			s.upkeep(now)
		default:
		}
	}
}

// settle has new keys that are due read again by the next pass, and returns how
// long to wait for the next ones.
func (s *Syncer) settle() time.Duration {
	now, next := s.opts.Now(), int64(0)
	if rest := s.settled + int64(settlePace) - now; rest > 0 && rest <= int64(settlePace) {
		return time.Duration(rest)
	}
	s.settled = now
	s.t.Update(func(tx *table.Tx) { next = tx.Settle(now, settleChunk) })
	if next == 0 {
		return upkeep // a new key wakes the writer
	}
	return max(time.Duration(next-now), settlePace)
}

// pass writes one batch and reads one lot of keys again. It tells whether there is
// more to do at once.
func (s *Syncer) pass() (more bool, err error) {
	b := s.m.Batch()
	position, err := s.fill(b)
	if err != nil {
		return false, err
	}
	full := b.Len() == b.Cap()
	if err := s.flush(b, position); err != nil {
		return false, err
	}
	n, err := s.recheck()
	return full || n == len(s.found), err
}

// fill takes dirty records into the batch. The table is locked for a chunk at a
// time: capture and the streams want it too.
func (s *Syncer) fill(b *Batch) (position uint64, err error) {
	s.pending = s.pending[:0]
	for end := false; !end && err == nil; {
		s.t.View(func(tx *table.Tx) {
			var rec table.Record
			for range chunk {
				if b.Len() == b.Cap() || !tx.NextDirty(s.cursor, &rec) {
					end = true
					break
				}
				if err = b.Add(rec.Key, rec.Value); err != nil {
					break
				}
				s.pending = append(s.pending, write{rec.Ref, rec.Version, rec.Delete})
			}
			position = s.cursor.Position()
		})
	}
	return position, err
}

// flush writes the batch and tells the table what became of it.
func (s *Syncer) flush(b *Batch, position uint64) error {
	if b.Len() > 0 {
		began := time.Now()
		_, err := s.m.Apply(b)
		if err != nil {
			return err
		}
		s.count(b, time.Since(began))
	}
	for at := 0; at < len(s.pending); at += chunk {
		s.t.Update(func(tx *table.Tx) {
			for i := at; i < min(at+chunk, len(s.pending)); i++ {
				tx.Applied(s.pending[i].ref, s.pending[i].version, b.Err(i))
			}
		})
	}
	s.t.Update(func(tx *table.Tx) { tx.SetApplied(position) })
	return s.displace(b)
}

func (s *Syncer) count(b *Batch, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.stats
	st.Bursts++
	st.LastBurst, st.MaxBurst = took, max(took, st.MaxBurst)
	for i := range s.pending {
		switch unix.Errno(-b.rc(i)) {
		case 0:
			if s.pending[i].remove {
				st.Deleted++
			} else {
				st.Written++
			}
		case unix.E2BIG:
			st.FailedFull++
		case unix.ENOMEM:
			st.FailedMemory++
		case unix.EBUSY:
			st.FailedBusy++
		default:
			st.FailedOther++
		}
	}
}

// recheck reads again what the table asks for, and returns how many keys that was.
// What was read goes to the table with the time before the read: an event of a
// later change must not look older than this. What could not be read is asked for
// again: whoever serves the table next finds it.
func (s *Syncer) recheck() (n int, err error) {
	s.t.Update(func(tx *table.Tx) {
		if n = tx.TakeRechecks(s.keys); n > 0 {
			tx.BeginReading(&s.reading)
		}
	})
	if n == 0 {
		return 0, nil
	}
	now := s.opts.Now()
	ks, vs := s.t.KeySize(), s.t.ValueSize()
	err = s.m.Lookup(s.keys[:n*ks], func(i int, _, value []byte, found bool) {
		s.found[i] = found
		copy(s.values[i*vs:][:vs], value)
	})
	if err != nil {
		s.putBack(n)
		return 0, err
	}
	s.t.Update(func(tx *table.Tx) {
		tx.Now(s.opts.Now())
		for i := range n {
			c := table.Change{
				Key: s.keys[i*ks:][:ks], Time: now, Op: table.OpDelete, Context: table.ContextReread, Read: &s.reading,
			}
			if s.found[i] {
				c.Op, c.Value = table.OpUpdate, s.values[i*vs:][:vs]
			}
			tx.Local(&c)
		}
		tx.EndReading(&s.reading)
	})
	s.mu.Lock()
	s.stats.Rechecks += uint64(n)
	s.mu.Unlock()
	return n, nil
}

// putBack asks again for the keys of a recheck that failed.
func (s *Syncer) putBack(n int) {
	ks := s.t.KeySize()
	s.t.Update(func(tx *table.Tx) {
		tx.EndReading(&s.reading)
		for i := range n {
			tx.Reread(s.keys[i*ks:][:ks])
		}
	})
}

// upkeep lets tombstones expire, and gives failed writes another try: after a
// second, and after ever longer pauses while it is of no use.
func (s *Syncer) upkeep(now time.Time) {
	for more := true; more; {
		s.t.Update(func(tx *table.Tx) { more = tx.Expire(s.opts.Now(), chunk) })
	}
	for more := true; more; {
		s.t.Update(func(tx *table.Tx) { more = tx.ExpireEvicted(s.opts.Now(), chunk) })
	}
	failed := s.t.Stats().Failed
	s.note(failed)
	if failed == 0 || failed < s.lastFailed {
		s.backoff, s.retryAt = minBackoff, now
	}
	s.lastFailed = failed
	if failed == 0 || now.Before(s.retryAt) {
		return
	}
	s.t.Update(func(tx *table.Tx) { tx.RequeueFailed(s.m.batch.Cap()) })
	s.retryAt = now.Add(s.backoff)
	s.backoff = min(2*s.backoff, maxBackoff)
}

// note logs when writes begin to fail and when the last of them has succeeded.
func (s *Syncer) note(failed int) {
	if (failed > 0) == (s.lastFailed > 0) {
		return
	}
	if failed == 0 {
		s.opts.Logger.Info("all entries are in the map again", "kernel_map", s.m.info.Name)
		return
	}
	st := s.Stats()
	s.opts.Logger.Warn("entries do not go into the map, trying again", "kernel_map", s.m.info.Name, "entries", failed,
		"max_entries", s.m.info.MaxEntries, "full", st.FailedFull, "memory", st.FailedMemory,
		"busy", st.FailedBusy, "other", st.FailedOther)
}

// Stats returns what was done so far.
func (s *Syncer) Stats() SyncerStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}
