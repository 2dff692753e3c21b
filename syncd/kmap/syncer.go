package kmap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/syncd/table"
)

const (
	// chunk is the number of records handled under one hold of the table's lock. rereadBytes is the
	// maximum size of the keys and values in one reread, in bytes.
	chunk       = 256
	rereadBytes = 2 << 20
	// batchDelay is the pause of the writer before it checks for new records. Under load it then
	// finds many records at once. At rest its cost is negligible.
	batchDelay = 500 * time.Microsecond
	// settleInterval is the minimum time between two rereads of settling keys, and settleChunk is
	// the maximum number of keys in one of them. Together they bound the cost to about 4 % of a
	// core.
	settleInterval = 10 * time.Millisecond
	settleChunk    = 1024
	// upkeep is the interval of tombstone expiry and of the check for failed writes.
	upkeep = time.Second
	// Minimum and maximum pause between retries of failed writes.
	minBackoff = time.Second
	maxBackoff = 30 * time.Second
)

// SyncerOptions are the options of [NewSyncer].
type SyncerOptions struct {
	// Now is the wall clock in nanoseconds. It must have the same fixed offset from the monotonic
	// clock as capture uses. Nil: [time.Now].
	Now func() int64
	// Uses shows uses of entries without a change, for the expiry after a takeover. Nil: each use changes the entry.
	Uses Uses
	// Ended reports whether a process has ended, for the detection of clears. Nil: it is not known.
	Ended func(table.Process) bool
	// BeforeRestore is called before the entries of a clear are restored, until it returns true. Nil: nothing has to be done.
	BeforeRestore func() bool
	// Logger receives messages when writes start to fail and when they recover. Nil: discarded.
	Logger *slog.Logger
}

// SyncerStats are counters of a [Syncer] since it was created.
type SyncerStats struct {
	Written uint64 // entries updated in the map
	Deleted uint64 // entries deleted from the map, or found absent
	Rereads uint64 // keys reread
	Bursts  uint64 // batches written
	// Displaced counts entries of peers deleted from a full map in favour of newer ones.
	Displaced uint64

	FailedFull   uint64 // writes refused because the map was full
	FailedMemory uint64 // writes refused because of a lack of memory
	FailedBusy   uint64 // writes refused because the map was locked
	// FailedWithoutID counts writes of entries whose meaning has no id in a referenced map of this node.
	FailedWithoutID uint64
	FailedOther     uint64 // writes refused for other reasons

	// LastFailure is the cause of the latest refused write, as in the fields above: full, memory, busy, id or other; empty: none.
	LastFailure string

	LastBurst time.Duration // duration of the last batch in the kernel
	MaxBurst  time.Duration // longest duration of a batch in the kernel
}

// Syncer keeps one kernel map in sync with its table. It writes dirty records, rereads the keys
// that the table requests, retries failed writes, and expires tombstones.
type Syncer struct {
	t    *table.Table
	m    *Map
	opts SyncerOptions

	cursor  *table.Cursor
	pending []pendingWrite
	noRoom  []int          // the numbers of those that must not become another entry of the map
	refused []pendingWrite // records of the burst just written that a full map refused
	keys    []byte         // of a reread
	values  []byte
	found   []bool
	reading table.Reading // of a reread

	upkeepAt   int64 // time of the last upkeep, ns
	lastSettle int64 // time of the last check of settling keys, ns
	backoff    time.Duration
	retryAt    time.Time
	lastFailed int
	followed   *followers // the latest changes of ids, until they are searched for again

	mu    sync.Mutex
	stats SyncerStats
}

// pendingWrite is a record in the current batch.
type pendingWrite struct {
	ref     table.Ref
	version table.Version
	remove  bool
}

// NewSyncer returns the Syncer of a table and a map, which must have the same sizes. For a map that
// replaced another, the caller calls Refill on the table first. A map has one Syncer at a time,
// because the Syncer owns its [Batch].
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
	lot := min(chunk, rereadBytes/(t.KeySize()+t.ValueSize()))
	return &Syncer{
		t: t, m: m, opts: o, backoff: minBackoff,
		keys:   make([]byte, lot*t.KeySize()),
		values: make([]byte, lot*t.ValueSize()),
		found:  make([]bool, lot),
	}, nil
}

// Run works until ctx is done, and then returns nil. It returns an error of the map as a whole, for
// example if user space may not write the map. It retries and counts errors of single entries.
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
	var translate <-chan time.Time // nil without a translation
	if s.m.translation != nil {
		ticker := time.NewTicker(translationInterval)
		defer ticker.Stop()
		translate = ticker.C
	}
	for {
		if err := s.retranslate(); err != nil {
			return err
		}
		more, err := s.pass()
		if err != nil {
			return err
		}
		if !more {
			settle.Reset(s.settle())
			select {
			case <-ctx.Done():
			case <-wake:
				pause.Reset(batchDelay)
				select {
				case <-ctx.Done():
				case <-pause.C:
				}
			case <-settle.C:
			case <-translate:
			case now := <-tick.C:
				err = s.upkeep(now)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		select {
		case now := <-tick.C:
			err = errors.Join(err, s.upkeep(now))
		default:
		}
		if err != nil {
			return err
		}
	}
}

// settle requests rereads of settling keys that are due, for the next pass. It returns the time
// until the next ones are due.
func (s *Syncer) settle() time.Duration {
	now, next := s.opts.Now(), int64(0)
	if rest := s.lastSettle + int64(settleInterval) - now; rest > 0 && rest <= int64(settleInterval) {
		return time.Duration(rest)
	}
	s.lastSettle = now
	s.t.Update(func(tx *table.Tx) { next = tx.Settle(now, settleChunk) })
	if next == 0 {
		return upkeep // a new key wakes the writer
	}
	return max(time.Duration(next-now), settleInterval)
}

// pass writes one batch and rereads one set of keys. It returns true if more work is ready.
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
	n, err := s.reread()
	return full || n == len(s.found), err
}

// fill adds dirty records to the batch. It locks the table for one chunk at a time, because capture
// and the streams need the lock too.
func (s *Syncer) fill(b *Batch) (position uint64, err error) {
	s.pending, s.noRoom = s.pending[:0], s.noRoom[:0]
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
				if rec.NoRoom {
					s.noRoom = append(s.noRoom, b.Len()-1)
				}
				s.pending = append(s.pending, pendingWrite{rec.Ref, rec.Version, rec.Delete})
			}
			position = s.cursor.Position()
		})
	}
	return position, err
}

// flush writes the batch and passes the result of each write to the table.
func (s *Syncer) flush(b *Batch, position uint64) error {
	if b.Len() > 0 {
		began := time.Now()
		if err := s.refuseAbsent(b); err != nil {
			return err
		}
		if _, err := s.m.Apply(b); err != nil {
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
	if err := s.displace(b); err != nil {
		return err
	}
	return s.makeRoom(b)
}

func (s *Syncer) count(b *Batch, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.stats
	st.Bursts++
	st.LastBurst, st.MaxBurst = took, max(took, st.MaxBurst)
	for i := range s.pending {
		switch errno := unix.Errno(-b.rc(i)); {
		case errno == 0 && s.pending[i].remove:
			st.Deleted++
		case errno == 0:
			st.Written++
		case errno == errWithoutID:
			st.FailedWithoutID++
			st.LastFailure = "id"
		case errno == unix.E2BIG:
			st.FailedFull++
			st.LastFailure = "full"
		case errno == unix.ENOMEM:
			st.FailedMemory++
			st.LastFailure = "memory"
		case LockedBucket(errno):
			st.FailedBusy++
			st.LastFailure = "busy"
		default:
			st.FailedOther++
			st.LastFailure = "other"
		}
	}
}

// reread rereads the keys that the table requests, and returns their number. It passes the results
// to the table with the time before the read, so that an event of a later change is not older than
// the result. If the read fails, it requests the keys again, for the next reader of the table.
func (s *Syncer) reread() (n int, err error) {
	s.t.Update(func(tx *table.Tx) {
		if n = tx.TakeRereads(s.keys); n > 0 {
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
		s.requeueRereads(n)
		if errors.Is(err, ErrAlwaysDrained) {
			return 0, nil // until the next call of settle
		}
		return 0, err
	}
	s.t.Update(func(tx *table.Tx) {
		tx.AdvanceClock(s.opts.Now())
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
	s.stats.Rereads += uint64(n)
	s.mu.Unlock()
	return n, nil
}

// requeueRereads requests the keys of a failed reread again.
func (s *Syncer) requeueRereads(n int) {
	ks := s.t.KeySize()
	s.t.Update(func(tx *table.Tx) {
		tx.EndReading(&s.reading)
		for i := range n {
			tx.RequestReread(s.keys[i*ks:][:ks])
		}
	})
}

// upkeep expires tombstones and entries, and retries failed writes: after a second, and at increasing intervals
// while the retries fail.
func (s *Syncer) upkeep(now time.Time) error {
	for more := true; more; {
		s.t.Update(func(tx *table.Tx) { more = tx.Expire(s.opts.Now(), chunk) })
	}
	for more := true; more; {
		s.t.Update(func(tx *table.Tx) { more = tx.ExpireEvicted(s.opts.Now(), chunk) })
	}
	if err := s.expireTakenOver(); err != nil {
		return err
	}
	s.settleDeletes()
	s.retry(now)
	return nil
}

func (s *Syncer) settleDeletes() {
	for more := true; more; {
		var restore bool
		s.t.Update(func(tx *table.Tx) {
			more = tx.SettleDeletes(s.opts.Now(), s.opts.Ended, chunk)
			_, restore = tx.RestoresClear()
		})
		if more || !restore {
			continue
		}
		if s.opts.BeforeRestore != nil && !s.opts.BeforeRestore() {
			return
		}
		s.t.Update(func(tx *table.Tx) { tx.AllowRestore() })
		more = true
	}
}

// Stats returns the counters since the Syncer was created.
func (s *Syncer) Stats() SyncerStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}
