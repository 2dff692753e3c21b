package capture

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/syncd/table"
)

// pump moves events from the buffer into the tables, one batch at a time, without allocations.
type pump struct {
	capture *Capture
	batch   batch
	events  []event
	run     []event // the part of events that the current Update applies
	target  *target
	apply   func(*table.Tx)
	change  table.Change
	keys    [][]byte // keys passed to Prefetch

	mu       sync.Mutex // guards the fields below
	lookups  lookups
	sequence sequence
	stats    Stats

	final counters // last values of the hooks' counters, which cannot be read after Close
}

func (p *pump) init(c *Capture) {
	p.capture = c
	p.events = make([]event, 0, batchEvents)
	p.keys = make([][]byte, 0, table.PrefetchBatch)
	p.batch.samples = make([][]byte, 0, batchEvents)
	p.apply = p.applyRun
	p.lookups.wake = make(chan struct{}, 1)
}

// A batch of fewer events than smallBatch is followed by a pause, in which more events accumulate.
// For an event in an empty buffer, the kernel wakes the reader, at the load balancer's cost.
// Without the pause nearly every event would cause a wakeup.
const (
	smallBatch = 64
	batchDelay = 200 * time.Microsecond
	// minDelayBuffer is the minimum buffer size for the pause, in bytes. The load balancer does not
	// fill a buffer of this size during a pause.
	minDelayBuffer = 1 << 20
)

// Run moves events into the tables until ctx ends or Close is called. It then returns nil. Any
// other end returns an error.
func (c *Capture) Run(ctx context.Context) error {
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { _ = c.source.close(); close(closed) })
	defer func() {
		if !stop() {
			<-closed
		}
	}()
	var rereads sync.WaitGroup
	defer rereads.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if c.lookupsErr == nil {
		rereads.Go(func() { c.rereadLookups(ctx) })
	}
	for {
		if err := c.pump.step(); err != nil {
			if errors.Is(err, os.ErrClosed) {
				return nil
			}
			return err
		}
		if len(c.pump.events) < smallBatch && c.options.bufferBytes() >= minDelayBuffer {
			time.Sleep(batchDelay)
		}
	}
}

// step moves one batch into the tables.
func (p *pump) step() error {
	if err := p.read(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.parse()
	for rest := p.events; len(rest) > 0; rest = rest[len(p.run):] {
		n := 1
		for n < len(rest) && rest[n].mapID == rest[0].mapID {
			n++
		}
		p.run = rest[:n]
		p.target = p.capture.target(rest[0].mapID)
		if p.target == nil {
			p.stats.Unwatched += uint64(n)
			continue
		}
		p.target.table.Update(p.apply)
	}
	return nil
}

// read waits for a batch of events.
func (p *pump) read() error {
	p.batch.samples, p.batch.lost = p.batch.samples[:0], 0
	return p.capture.source.read(&p.batch)
}

// parse decodes the batch into events, in the order in which tables receive them.
func (p *pump) parse() {
	p.stats.PerfLost += p.batch.lost
	p.events = p.events[:0]
	for _, sample := range p.batch.samples {
		e, err := parseHeader(sample)
		if err != nil {
			p.stats.Malformed++
			continue
		}
		p.stats.SequenceGaps += p.sequence.missing(e.cpu, e.slot, e.seq)
		p.events = append(p.events, e)
	}
	p.order()
}

// order groups the events by map. It also sorts the events of a perf buffer, which are read per
// CPU, by time.
func (p *pump) order() {
	perf := p.capture.options.Buffer == BufferPerf
	compare := func(a, b event) int {
		if c := cmp.Compare(a.mapID, b.mapID); c != 0 || !perf {
			return c
		}
		return cmp.Compare(a.time, b.time)
	}
	if !slices.IsSortedFunc(p.events, compare) {
		slices.SortStableFunc(p.events, compare)
	}
}

func (p *pump) applyRun(tx *table.Tx) {
	offset, now := p.capture.options.WallOffset, time.Now()
	tx.AdvanceClock(monotonic() + offset)
	for i := range p.run {
		if i%table.PrefetchBatch == 0 {
			p.prefetch(tx, p.run[i:min(i+table.PrefetchBatch, len(p.run))])
		}
		e := &p.run[i]
		if e.ofCall() {
			p.requestRereads(tx, e)
			continue
		}
		if err := e.fill(&p.change, p.target.keySize, p.target.valueSize, offset); err != nil {
			p.stats.Malformed++
			continue
		}
		if e.op == opLookup {
			p.lookups.add(e.mapID, p.target, p.change.Key, now)
			p.stats.Lookups++
			continue
		}
		if e.op == table.OpDelete && e.context == table.ContextSyscall {
			tx.SetCaller(e.caller)
		}
		if p.target.suffix != nil || p.target.keysOnly() && e.op == table.OpUpdate {
			tx.RequestRereadOfChange(p.target.tableKey(p.change.Key))
		} else {
			p.change.Key, p.change.Value = p.target.translate(p.change.Key, p.change.Value)
			tx.Local(&p.change)
		}
		p.stats.Events++
		p.stats.ByContext[e.context]++
	}
}

// requestRereads makes the table reread the keys of an event of a call.
func (p *pump) requestRereads(tx *table.Tx, e *event) {
	size := p.target.keySize
	keys, err := e.keys(size)
	if err != nil {
		p.stats.Malformed++
		return
	}
	p.stats.Events += uint64(len(keys) / size)
	p.stats.ByContext[e.context] += uint64(len(keys) / size)
	request := tx.RequestRereadOfChange
	if e.op == opDeletedKeys {
		tx.SetCaller(e.caller)
		request = tx.RequestRereadOfDelete
	}
	for ; len(keys) > 0; keys = keys[size:] {
		request(p.target.tableKey(keys[:size]))
	}
}

// monotonic returns the clock of the events' times in ns, or 0 on error.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}

// prefetch makes the table read ahead the records of the events' keys.
func (p *pump) prefetch(tx *table.Tx, events []event) {
	p.keys = p.keys[:0]
	for i := range events {
		if data := events[i].data; len(data) >= p.target.keySize && !events[i].ofCall() {
			p.keys = append(p.keys, data[:p.target.keySize])
		}
	}
	tx.Prefetch(p.keys)
}
