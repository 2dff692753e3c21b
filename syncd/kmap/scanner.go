package kmap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"mapsync/syncd/table"
)

const (
	// defaultScanInterval and defaultScanShare are those of a Scanner that was told none.
	defaultScanInterval = 10 * time.Second
	defaultScanShare    = 0.05
	// endChunk is how many records are looked at under the table's lock when the
	// scan looks for those that it did not meet.
	endChunk = 4096
	// scanRetry is the pause after a scan that failed.
	scanRetry = time.Second
)

// errOvertaken ends a scan that an urgent one takes the place of.
var errOvertaken = errors.New("an urgent scan was asked for")

// ScannerOptions are what [NewScanner] needs to know besides table and map.
type ScannerOptions struct {
	// Interval is the time from the beginning of a scan to that of the next, unless the
	// budget makes it longer. 0: 10 s.
	Interval time.Duration
	// Budget is what scans may take of a processor; it may be that of other
	// Scanners too. Nil: 5 % of a core for this one alone.
	Budget *ScanBudget
	// Now is the wall clock in nanoseconds, as that of [SyncerOptions]. Nil: [time.Now].
	Now func() int64
	// Logger is told when scans cannot keep to the interval, or fail, and when they
	// do again. Nil: discarded.
	Logger *slog.Logger
}

// ScannerStats says what a [Scanner] did since it was made.
type ScannerStats struct {
	Scans    uint64 // finished
	Urgent   uint64 // of these, asked for by Request
	Failures uint64 // scans that ended with an error
	// Entries and Found are Scanned and ScanFound of the table's [table.Stats]: how many
	// entries were read, and how many differences found, also by Scanners before this one.
	Entries, Found uint64
	// Last is how long the last finished scan took, pauses included, and Work what of
	// it was work.
	Last, Work time.Duration
	// Interval is the time from one scan to the next as it is: the one asked for,
	// or longer when a scan takes that long.
	Interval time.Duration
	// Began is when the last finished scan began, in ns of the wall clock, 0 before the
	// first: it has found whatever was in the map by then.
	Began int64
}

// Scanner compares a kernel map with its table again and again, so that what no hook
// saw becomes a change like any other. What the comparison leaves in doubt a [Syncer]
// reads again, so one has to run beside it.
type Scanner struct {
	t    *table.Table
	m    *Map
	opts ScannerOptions
	wake chan struct{}

	mu      sync.Mutex
	wanted  bool // an urgent scan was asked for
	running time.Time
	late    bool // the last scan that was not urgent took longer than the interval
	failing bool
	stats   ScannerStats
}

// NewScanner returns the Scanner of a table and a map, which must have the same
// sizes. It does nothing before Run.
func NewScanner(t *table.Table, m *Map, o ScannerOptions) (*Scanner, error) {
	if t.KeySize() != m.info.KeySize || t.ValueSize() != m.info.ValueSize {
		return nil, fmt.Errorf("scan map %q of %d + %d bytes for a table of %d + %d bytes: sizes differ",
			m.info.Name, m.info.KeySize, m.info.ValueSize, t.KeySize(), t.ValueSize())
	}
	if o.Interval <= 0 {
		o.Interval = defaultScanInterval
	}
	if o.Budget == nil {
		o.Budget = NewScanBudget(defaultScanShare)
	}
	if o.Now == nil {
		o.Now = func() int64 { return time.Now().UnixNano() }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Scanner{t: t, m: m, opts: o, wake: make(chan struct{}, 1), stats: ScannerStats{Interval: o.Interval}}, nil
}

// Request asks for an urgent scan, which begins at once, in the place of one under
// way that is not urgent. If an urgent one is under way another follows it. It may be
// called at any time.
func (s *Scanner) Request() {
	s.mu.Lock()
	s.wanted = true
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Scanner) requested() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted
}

// Stats returns what was done so far.
func (s *Scanner) Stats() ScannerStats {
	t := s.t.Stats()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Entries, st.Found = t.Scanned, t.ScanFound
	if !s.running.IsZero() {
		st.Interval = max(st.Interval, time.Since(s.running))
	}
	return st
}

// Run scans until ctx is done; the first scan comes an interval after the start. A scan
// that fails is counted, logged and done again.
func (s *Scanner) Run(ctx context.Context) {
	due := time.Now().Add(s.opts.Interval)
	for s.await(ctx, due) {
		began := time.Now()
		err := s.scan(ctx, began)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errOvertaken):
		case err != nil:
			s.failed(err)
			pause(ctx, scanRetry, nil)
			due = time.Now()
		default:
			due = began.Add(s.opts.Interval)
		}
	}
}

// await returns true when it is time for the next scan, and false once ctx is done.
func (s *Scanner) await(ctx context.Context, due time.Time) bool {
	for ctx.Err() == nil && !s.requested() {
		rest := time.Until(due)
		if rest <= 0 {
			return true
		}
		pause(ctx, rest, s.wake)
	}
	return ctx.Err() == nil
}

// pause waits for d, for ctx, or for wake if it is not nil.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-timer.C:
	}
}

// pass is one scan under way.
type pass struct {
	*Scanner
	urgent bool
	meter  meter
	work   time.Duration
	head   uint64 // the table's position when the last entries were compared
	rested uint64 // and before the last pause

	reading table.Reading // of the entries that are read next
}

// scan compares the whole map with the table once.
func (s *Scanner) scan(ctx context.Context, began time.Time) error {
	p := pass{Scanner: s}
	wall := s.opts.Now()
	s.mu.Lock()
	p.urgent, s.wanted = s.wanted, false
	if !p.urgent {
		s.running = began
	}
	s.mu.Unlock()
	s.opts.Budget.enter(p.urgent)
	defer s.opts.Budget.leave(p.urgent)
	err := p.run(ctx)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = time.Time{}
	if err != nil {
		s.wanted = s.wanted || p.urgent
		return err
	}
	st := &s.stats
	st.Scans++
	st.Last, st.Work, st.Began = time.Since(began), p.work, wall
	if p.urgent {
		st.Urgent++
	}
	s.note(!p.urgent)
	return nil
}

// note follows a finished scan in the effective interval, and logs when it begins and
// ceases to be another than the one asked for. An urgent scan tells nothing of that.
func (s *Scanner) note(regular bool) {
	st := &s.stats
	if s.failing {
		s.failing = false
		s.opts.Logger.Info("scans work again", "kernel_map", s.m.info.Name)
	}
	if !regular {
		return
	}
	st.Interval = max(s.opts.Interval, st.Last)
	switch {
	case !s.late && st.Last > s.opts.Interval:
		s.late = true
		s.opts.Logger.Warn("scans take longer than scan-interval within scan-budget", "kernel_map", s.m.info.Name,
			"scan_seconds", st.Last.Seconds(), "work_seconds", st.Work.Seconds(), "interval_seconds", s.opts.Interval.Seconds())
	case s.late && st.Last < s.opts.Interval*4/5: // well below, lest the log tell of each
		s.late = false
		s.opts.Logger.Info("scans keep to scan-interval again", "kernel_map", s.m.info.Name,
			"scan_seconds", st.Last.Seconds(), "interval_seconds", s.opts.Interval.Seconds())
	}
}

func (s *Scanner) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Failures++
	if !s.failing {
		s.failing = true
		s.opts.Logger.Error("a scan failed, trying again", "kernel_map", s.m.info.Name, "error", err)
	}
}

// run does the work of a scan, in chunks with pauses between them.
func (p *pass) run(ctx context.Context) error {
	p.meter.start()
	defer func() { p.work += p.meter.stop() }()
	p.t.Update(func(tx *table.Tx) { tx.BeginScan() })
	err := p.m.Scan(ctx, p.begin, func(at int64, keys, values []byte) error {
		p.compare(at, keys, values)
		return p.rest(ctx)
	})
	p.t.Update(func(tx *table.Tx) { tx.EndReading(&p.reading) })
	for more := true; more && err == nil; {
		p.t.Update(func(tx *table.Tx) { more = tx.EndScan(endChunk) })
		err = p.rest(ctx)
	}
	return err
}

// begin begins the reading of the next entries, and returns the time before it.
func (p *pass) begin() int64 {
	p.t.View(func(tx *table.Tx) { tx.BeginReading(&p.reading) })
	return p.opts.Now()
}

// compare enters entries into the table, a chunk under its lock at a time.
func (p *pass) compare(at int64, keys, values []byte) {
	ks, vs := p.t.KeySize(), p.t.ValueSize()
	for len(keys) > 0 {
		n := min(chunk, len(keys)/ks)
		p.t.Update(func(tx *table.Tx) {
			tx.ScannedAll(&p.reading, at, keys[:n*ks], values[:n*vs])
			p.head = tx.Head()
		})
		keys, values = keys[n*ks:], values[n*vs:]
	}
}

// rest pauses for as long as the budget asks, if that is worth it. It returns an error when
// the scan is to end.
func (p *pass) rest(ctx context.Context) error {
	work := p.meter.lap()
	p.work += work
	calm := p.head == p.rested
	least := busyPause
	if calm {
		least = calmPause
	}
	owed := p.opts.Budget.spend(time.Since(started), work)
	if owed < least {
		return p.goOn(ctx)
	}
	if calm {
		owed = p.opts.Budget.spend(time.Since(started), p.meter.besides())
	}
	p.rested = p.head
	p.meter.stop() // the thread is not needed meanwhile
	defer p.meter.start()
	return p.pauseFor(ctx, owed)
}

// goOn returns an error when the scan is to end.
func (p *pass) goOn(ctx context.Context) error {
	if !p.urgent && p.requested() {
		return errOvertaken
	}
	return ctx.Err()
}

func (p *pass) pauseFor(ctx context.Context, d time.Duration) error {
	for until := time.Now().Add(d); d > 0; d = time.Until(until) {
		if err := p.goOn(ctx); err != nil {
			return err
		}
		pause(ctx, d, p.wake)
	}
	return p.goOn(ctx)
}
