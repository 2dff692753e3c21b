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

// pump carries events from the buffer into the tables, a batch at a time and
// without allocating.
type pump struct {
	capture *Capture
	batch   batch
	events  []event
	run     []event // the part of events that the current Update applies
	target  *target
	apply   func(*table.Tx)
	change  table.Change
	keys    [][]byte // of what warm looks at

	mu       sync.Mutex // guards what follows
	sequence sequence
	stats    Stats

	// What can no longer be asked for once Close has begun.
	final          counters
	skipped        uint64
	skippedCounted bool
}

func (p *pump) init(c *Capture) {
	p.capture = c
	p.events = make([]event, 0, batchEvents)
	p.keys = make([][]byte, 0, table.WarmKeys)
	p.batch.samples = make([][]byte, 0, batchEvents)
	p.apply = p.applyRun
}

// A batch of fewer events than fewEvents is followed by a pause, in which the next
// ones gather. The kernel wakes the reader for an event that finds the buffer empty,
// at the load balancer's cost: without the pause that is nearly each one.
const (
	fewEvents = 64
	gather    = 200 * time.Microsecond
	// gatherBytes is how large a buffer has to be for the pause: one that the load
	// balancer does not fill meanwhile.
	gatherBytes = 1 << 20
)

// Run carries events into the tables until ctx ends or Close is called. It then
// returns nil; any other end is an error.
func (c *Capture) Run(ctx context.Context) error {
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { _ = c.source.close(); close(closed) })
	defer func() {
		if !stop() {
			<-closed
		}
	}()
	for {
		if err := c.pump.step(); err != nil {
			if errors.Is(err, os.ErrClosed) {
				return nil
			}
			return err
		}
		if len(c.pump.events) < fewEvents && c.options.bufferBytes() >= gatherBytes {
			time.Sleep(gather)
		}
	}
}

// step moves one batch.
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

// read waits for a batch of records.
func (p *pump) read() error {
	p.batch.samples, p.batch.lost = p.batch.samples[:0], 0
	return p.capture.source.read(&p.batch)
}

// parse turns the batch into events, in the order in which tables get them.
func (p *pump) parse() {
	p.stats.PerfLost += p.batch.lost
	p.events = p.events[:0]
	for _, sample := range p.batch.samples {
		e, err := parseHead(sample)
		if err != nil {
			p.stats.Malformed++
			continue
		}
		p.stats.SequenceGaps += p.sequence.missing(e.cpu, e.slot, e.seq)
		p.events = append(p.events, e)
	}
	p.order()
}

// order puts the events of each map together, and those of a perf buffer, which
// come a CPU at a time, into the order of their time.
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
	offset := p.capture.options.WallOffset
	tx.Now(monotonic() + offset)
	for i := range p.run {
		if i%table.WarmKeys == 0 {
			p.warm(tx, p.run[i:min(i+table.WarmKeys, len(p.run))])
		}
		e := &p.run[i]
		if err := e.fill(&p.change, p.target.keySize, p.target.valueSize, offset); err != nil {
			p.stats.Malformed++
			continue
		}
		if p.target.valueSize == 0 && e.op == table.OpUpdate {
			tx.Reread(p.change.Key)
		} else {
			tx.Local(&p.change)
		}
		p.stats.Events++
		p.stats.ByContext[e.context]++
	}
}

// monotonic returns the clock of the events' times in ns, 0 if there is none.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return ts.Nano()
}

// warm has the table read ahead what it knows of the events' keys.
func (p *pump) warm(tx *table.Tx, events []event) {
	p.keys = p.keys[:0]
	for i := range events {
		if data := events[i].data; len(data) >= p.target.keySize {
			p.keys = append(p.keys, data[:p.target.keySize])
		}
	}
	tx.Warm(p.keys)
}
