package capture

import (
	"errors"
	"os"
	"slices"

	"mapsync/syncd/table"

	"github.com/cilium/ebpf/link"
)

// OpKeys and OpDeletedKeys are the operations of the changes that Tap reports for keys of bpf(2) calls.
const (
	OpKeys        = opKeys
	OpDeletedKeys = opDeletedKeys
)

// OpLookup is the operation of the changes that Tap reports for lookups. LookupPause is the pause between two of
// them for one entry.
const (
	OpLookup    = opLookup
	LookupPause = lookupPause
)

// WatchProbes is the number of maps with the same WatchBucket that the hooks find.
const (
	WatchProbes = watchProbes
	// WatchBuckets is the number of buckets.
	WatchBuckets = watchBuckets
)

// WatchBucket returns the bucket of a map's watch.
func WatchBucket(id uint32) uint32 { return watchBucket(id) }

// Step moves one batch, for benchmarks.
func (c *Capture) Step() error { return c.pump.step() }

// Tap reads events like Run, until Close, but passes each to fn instead of the map's table. fn
// borrows the change. A table keeps only the newest change of each key.
func (c *Capture) Tap(fn func(mapID uint32, change *table.Change)) error {
	for {
		err := c.pump.read()
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		c.tapBatch(fn)
	}
}

func (c *Capture) tapBatch(fn func(mapID uint32, change *table.Change)) {
	p := &c.pump
	p.mu.Lock()
	defer p.mu.Unlock()
	p.parse()
	for i := range p.events {
		e := &p.events[i]
		target := c.target(e.mapID)
		if target == nil {
			p.stats.Unwatched++
			continue
		}
		if e.ofCall() {
			c.tapKeys(e, target.keySize, fn)
			continue
		}
		if err := e.fill(&p.change, target.keySize, target.valueSize, c.options.WallOffset); err != nil {
			p.stats.Malformed++
			continue
		}
		fn(e.mapID, &p.change)
		p.stats.Events++
		p.stats.ByContext[e.context]++
	}
}

// tapKeys passes each key of an event of a call to fn.
func (c *Capture) tapKeys(e *event, size int, fn func(mapID uint32, change *table.Change)) {
	keys, err := e.keys(size)
	if err != nil {
		c.pump.stats.Malformed++
		return
	}
	for ; len(keys) > 0; keys = keys[size:] {
		fn(e.mapID, &table.Change{Op: e.op, Context: e.context, Key: keys[:size]})
		c.pump.stats.Events++
		c.pump.stats.ByContext[e.context]++
	}
}

// DetachReturns detaches the return probes. The remaining hooks report nothing.
func (c *Capture) DetachReturns() error {
	err := closeLinks(c.returns)
	c.links = slices.DeleteFunc(c.links, func(l link.Link) bool { return slices.Contains(c.returns, l) })
	c.returns = nil
	return err
}

// AttachReturn attaches the return probe of a function again.
func (c *Capture) AttachReturn(symbol string) error {
	l, err := link.Kretprobe(symbol, c.objects.Programs[returnProgram], nil)
	if err != nil {
		return err
	}
	c.links, c.returns = append(c.links, l), append(c.returns, l)
	return nil
}
