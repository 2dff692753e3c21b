package kmap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"mapsync/syncd/table"
)

const (
	// defaultScanInterval and defaultScanShare are the defaults of [ScannerOptions].
	defaultScanInterval = 10 * time.Second
	defaultScanShare    = 0.05
	// endChunk is the number of records checked under one hold of the table's lock, when the scan
	// searches for records without an entry in the map.
	endChunk = 4096
	// scanRetry is the pause after a failed scan.
	scanRetry = time.Second
)

// errPreempted ends a scan that an urgent scan replaces.
var errPreempted = errors.New("preempted by an urgent scan")

// ScannerOptions are the options of [NewScanner].
type ScannerOptions struct {
	// Interval is the time from the start of a scan to the start of the next one, unless the budget
	// extends it. 0: 10 s.
	Interval time.Duration
	// MaxInterval is the longest time from the start of a scan to the start of the next one while
	// scans find the table unchanged. Values below Interval count as Interval.
	MaxInterval time.Duration
	// MaxCostlyInterval is the same for a map whose scan needs more than 1 % of a core at MaxInterval. Values
	// below MaxInterval count as MaxInterval.
	MaxCostlyInterval time.Duration
	// MayExtend reports whether the time between scans may exceed Interval at the moment: hooks report
	// all changes but those in place, or count them as lost. Nil: it may not. Run calls it without a
	// lock.
	MayExtend func() bool
	// Budget is the processor time that scans may use. Several Scanners may share it. Nil: 5 % of a
	// core for this Scanner alone.
	Budget *ScanBudget
	// Now is the wall clock in nanoseconds, as in [SyncerOptions]. Nil: [time.Now].
	Now func() int64
	// Logger receives messages when scans exceed the interval or fail, and when they recover. Nil:
	// discarded.
	Logger *slog.Logger
}

// ScannerStats are counters of a [Scanner] since it was created.
type ScannerStats struct {
	Scans    uint64 // finished scans
	Urgent   uint64 // finished scans that Request requested
	Failures uint64 // scans that ended with an error
	// Entries and Found are Scanned and ScanFound of the table's [table.Stats]: the number of
	// entries read and of differences found. They include the scans of earlier Scanners.
	Entries, Found uint64
	// Last is the duration of the last finished scan, with the pauses that its budget requires, and without
	// those of [ScanBudget.Pause]. Work is its duration without pauses.
	Last, Work time.Duration
	// Interval is the effective time from one regular scan to the next: the configured one, the
	// extended one of an unchanged map, or the duration of a scan if that is longer.
	Interval time.Duration
	// Failing reports that the last scan ended with an error. Late reports that the last regular scan took longer than the interval.
	Failing, Late bool
	// Began is the start time of the last finished scan, in ns of the wall clock, or 0 before the
	// first. The scan has found all entries that were in the map at that time.
	Began int64
}

// Scanner compares a kernel map with its table repeatedly, and turns differences that no hook
// reported into changes. A [Syncer] must run for the same table: it rereads the keys for which the
// comparison is inconclusive.
type Scanner struct {
	t    *table.Table
	m    *Map
	opts ScannerOptions
	wake chan struct{}

	unchanged unchangedScans // used by Run's goroutine only

	mu              sync.Mutex
	urgentRequested bool // an urgent scan was requested
	running         time.Time
	late            bool // the last scan that was not urgent took longer than the interval
	failing         bool
	stats           ScannerStats
}

// NewScanner returns the Scanner of a table and a map, which must have the same sizes. The scans
// start with Run.
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

// Request requests an urgent scan. It starts at once and replaces a scan in progress that is not
// urgent. If an urgent scan is in progress, another one follows it. Request is safe for concurrent
// use.
func (s *Scanner) Request() {
	s.mu.Lock()
	s.urgentRequested = true
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Scanner) requested() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.urgentRequested
}

// Stats returns the counters since the Scanner was created.
func (s *Scanner) Stats() ScannerStats {
	t := s.t.Stats()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Entries, st.Found = t.Scanned, t.ScanFound
	st.Failing, st.Late = s.failing, s.late
	if !s.running.IsZero() {
		st.Interval = max(st.Interval, time.Since(s.running))
	}
	return st
}

// Run scans until ctx is done. The first scan starts one interval after the call. Run counts and
// logs a failed scan, and repeats it.
func (s *Scanner) Run(ctx context.Context) {
	last := time.Now()
	for s.await(ctx, last) {
		began := time.Now()
		err := s.scan(ctx, began)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errPreempted):
		case err != nil:
			s.recordFailure(err)
			pause(ctx, scanRetry, nil)
			last = time.Time{}
		default:
			last = began
		}
	}
}

// await waits for the time of the next scan and returns true, or returns false if ctx is done. The
// last scan began at last.
func (s *Scanner) await(ctx context.Context, last time.Time) bool {
	for ctx.Err() == nil && !s.requested() {
		due, wait := s.due(time.Since(last))
		if due {
			break
		}
		pause(ctx, wait, s.wake)
	}
	s.opts.Budget.awaitResumed(ctx)
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

// scanPass is one scan in progress.
type scanPass struct {
	*Scanner
	urgent      bool
	meter       meter
	work        time.Duration
	paused      time.Duration // between Pause and Resume of the budget
	head        uint64        // the table's position at the last comparison
	headAtPause uint64        // the table's position before the last pause

	reading table.Reading // of the entries that are read next
}

// scan compares the whole map with the table once.
func (s *Scanner) scan(ctx context.Context, began time.Time) error {
	p := scanPass{Scanner: s}
	wall := s.opts.Now()
	s.mu.Lock()
	p.urgent, s.urgentRequested = s.urgentRequested, false
	if !p.urgent {
		s.running = began
	}
	s.mu.Unlock()
	s.opts.Budget.enter(p.urgent)
	defer s.opts.Budget.leave(p.urgent)
	err := p.run(ctx)
	interval := s.opts.Interval
	if err == nil && !p.urgent {
		s.unchanged.finished(s.changes(), s.mayExtend(), p.work)
		interval = s.opts.interval(s.unchanged.count, p.work)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = time.Time{}
	if err != nil {
		s.urgentRequested = s.urgentRequested || p.urgent
		return err
	}
	st := &s.stats
	st.Scans++
	st.Last, st.Work, st.Began = time.Since(began)-p.paused, p.work, wall
	if p.urgent {
		st.Urgent++
	}
	s.recordFinished(!p.urgent, interval)
	return nil
}

// recordFinished updates the effective interval after a finished scan, and logs when regular scans
// start or stop to take longer than the configured one. interval is the time to the next scan. An
// urgent scan does not affect it. The lock is held.
func (s *Scanner) recordFinished(regular bool, interval time.Duration) {
	st := &s.stats
	if s.failing {
		s.failing = false
		s.opts.Logger.Info("scans recovered", "kernel_map", s.m.info.Name)
	}
	if !regular {
		return
	}
	st.Interval = max(interval, st.Last)
	switch {
	case !s.late && st.Last > s.opts.Interval:
		s.late = true
		s.opts.Logger.Warn("scans take longer than scan-interval within scan-budget", "kernel_map", s.m.info.Name,
			"scan_seconds", st.Last.Seconds(), "work_seconds", st.Work.Seconds(), "interval_seconds", s.opts.Interval.Seconds(),
			"hint", "raise scan-budget")
	case s.late && st.Last < s.opts.Interval*4/5: // well below the interval, to limit the number of messages
		s.late = false
		s.opts.Logger.Info("scans are within scan-interval again", "kernel_map", s.m.info.Name,
			"scan_seconds", st.Last.Seconds(), "interval_seconds", s.opts.Interval.Seconds())
	}
}

func (s *Scanner) recordFailure(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Failures++
	if !s.failing {
		s.failing = true
		s.opts.Logger.Error("scan failed, retrying", "kernel_map", s.m.info.Name, "error", err,
			"hint", scanHint(err))
	}
}

// scanHint returns the remedy for a failed scan.
func scanHint(err error) string {
	switch {
	case errors.Is(err, errBucket):
		return "give the map more maximum entries, so that it has more buckets"
	case errors.Is(err, ErrAlwaysDrained):
		return "let the collector pause between two calls"
	case errors.Is(err, os.ErrPermission):
		return "grant the privilege that syncd check names"
	case exhausted(err):
		return "raise LimitNOFILE, or free memory"
	}
	return "restart syncd; if the error returns, report it"
}

// run makes the scan, in chunks with pauses between them.
func (p *scanPass) run(ctx context.Context) error {
	p.meter.start()
	defer func() { p.work += p.meter.stop() }()
	p.t.Update(func(tx *table.Tx) { tx.BeginScan(p.opts.Now()) })
	err := p.m.Read(ctx, p.begin, func(at int64, keys, values []byte) error {
		p.compare(at, keys, values)
		return p.throttle(ctx)
	})
	p.t.Update(func(tx *table.Tx) { tx.EndReading(&p.reading) })
	for more := true; more && err == nil; {
		p.t.Update(func(tx *table.Tx) { more = tx.EndScan(endChunk) })
		err = p.throttle(ctx)
	}
	return err
}

// begin starts the reading of the next entries, and returns the time before it.
func (p *scanPass) begin() int64 {
	p.t.View(func(tx *table.Tx) { tx.BeginReading(&p.reading) })
	return p.opts.Now()
}

// compare passes entries to the table, one chunk per hold of its lock.
func (p *scanPass) compare(at int64, keys, values []byte) {
	ks, vs := p.t.KeySize(), p.t.ValueSize()
	for len(keys) > 0 {
		n := min(chunk, len(keys)/ks)
		p.t.Update(func(tx *table.Tx) {
			tx.AdvanceClock(p.opts.Now())
			tx.ScannedAll(&p.reading, at, keys[:n*ks], values[:n*vs])
			p.head = tx.Head()
		})
		keys, values = keys[n*ks:], values[n*vs:]
	}
}

// throttle pauses for the duration that the budget requires, unless it is below the shortest pause.
// It returns an error if the scan must end.
func (p *scanPass) throttle(ctx context.Context) error {
	work := p.meter.lap()
	p.work += work
	if !p.opts.Budget.PausedUntil().IsZero() {
		p.meter.stop()
		defer p.meter.start()
		began := time.Now()
		p.opts.Budget.awaitResumed(ctx)
		p.paused += time.Since(began)
		return p.checkInterrupted(ctx)
	}
	idle := p.head == p.headAtPause
	least := minPauseBusy
	if idle {
		least = minPauseIdle
	}
	delay := p.opts.Budget.spend(time.Since(budgetClockStart), work)
	if delay < least {
		return p.checkInterrupted(ctx)
	}
	if idle {
		delay = p.opts.Budget.spend(time.Since(budgetClockStart), p.meter.overhead())
	}
	p.headAtPause = p.head
	p.meter.stop() // the pause does not need the thread
	defer p.meter.start()
	return p.pauseFor(ctx, delay)
}

// checkInterrupted returns an error if the scan must end.
func (p *scanPass) checkInterrupted(ctx context.Context) error {
	if !p.urgent && p.requested() {
		return errPreempted
	}
	return ctx.Err()
}

func (p *scanPass) pauseFor(ctx context.Context, d time.Duration) error {
	for until := time.Now().Add(d); d > 0; d = time.Until(until) {
		if err := p.checkInterrupted(ctx); err != nil {
			return err
		}
		pause(ctx, d, p.wake)
	}
	return p.checkInterrupted(ctx)
}
