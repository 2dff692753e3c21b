package capture

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mapsync/syncd/table"
)

// A program looks an entry up before it changes the entry in place. After the event of a lookup, the hook
// reports no further lookup of the entry for lookupPause. The reread after lookupDelay then finds all changes
// up to the end of that pause, and the next lookup causes another event. The difference is the time by which
// the kernel's jiffies may be late.
const (
	lookupPause = 100 * time.Millisecond
	lookupDelay = 200 * time.Millisecond
	// lookupBatchTime is the time for which a batch receives keys. A batch is due lookupDelay after its first
	// key, so that the last one waits for longer than lookupPause, too.
	lookupBatchTime = 25 * time.Millisecond
	// maxLookups is the maximum number of lookups that a hook reports on one CPU in a second. It reports up to a
	// tenth of that at once.
	maxLookups = 32_000
	// maxWaitingBytes limits the keys that wait for their reread.
	maxWaitingBytes = 16 << 20
	// rereadChunk is the number of keys for which the table is locked at a time.
	rereadChunk = 256
	// maxPendingRereads is the number of pending rereads of a table above which looked-up keys are dropped.
	maxPendingRereads = 16 << 10
)

// MaxInPlaceDelay is the time within which a change in place is in the table with [Capture.WatchLookups], unless the hook has
// missed the lookup: its reread is requested after at most lookupDelay.
const MaxInPlaceDelay = 300 * time.Millisecond

// lookups are the keys that programs looked up and that the tables are about to reread. The lock of the pump
// protects them.
type lookups struct {
	batches []lookupBatch // oldest first
	bytes   int           // of all keys
	spare   [][]byte      // buffers of former batches
	dropped uint64        // keys above maxWaitingBytes or maxPendingRereads
	wake    chan struct{} // has an element after batches was empty
}

// lookupBatch has the keys of one map, each of the table's key size.
type lookupBatch struct {
	target *target
	id     uint32
	opened time.Time
	keys   []byte
}

// add adds the key of a lookup.
func (l *lookups) add(id uint32, t *target, key []byte, now time.Time) {
	if l.bytes+len(key) > maxWaitingBytes {
		l.dropped++
		return
	}
	b := l.open(id, t, now)
	b.keys = append(b.keys, key...)
	l.bytes += len(key)
}

// open returns the batch that receives the keys of a map.
func (l *lookups) open(id uint32, t *target, now time.Time) *lookupBatch {
	for i := len(l.batches) - 1; i >= 0; i-- {
		b := &l.batches[i]
		if now.Sub(b.opened) > lookupBatchTime {
			break
		}
		if b.target == t {
			return b
		}
	}
	b := lookupBatch{target: t, id: id, opened: now}
	if n := len(l.spare); n > 0 {
		b.keys, l.spare = l.spare[n-1][:0], l.spare[:n-1]
	}
	if l.batches = append(l.batches, b); len(l.batches) == 1 {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return &l.batches[len(l.batches)-1]
}

// takeDue removes a batch that is due. Otherwise it returns the time until the next one is, 0 if there is none.
func (l *lookups) takeDue(now time.Time) (b lookupBatch, due bool, wait time.Duration) {
	if len(l.batches) == 0 {
		return b, false, 0
	}
	if wait = lookupDelay - now.Sub(l.batches[0].opened); wait > 0 {
		return b, false, wait
	}
	b = l.batches[0]
	copy(l.batches, l.batches[1:])
	l.batches[len(l.batches)-1] = lookupBatch{}
	l.batches = l.batches[:len(l.batches)-1]
	l.bytes -= len(b.keys)
	return b, true, 0
}

// rereadLookups requests the rereads of looked-up entries when they are due, until ctx is done.
func (c *Capture) rereadLookups(ctx context.Context) {
	for {
		wait := c.pump.requestDue()
		if wait == 0 {
			select {
			case <-ctx.Done():
				return
			case <-c.pump.lookups.wake:
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// requestDue requests the rereads that are due, and returns the time until the next ones are, 0 if none wait. It
// releases the lock of the pump after each chunk, because events arrive meanwhile.
func (p *pump) requestDue() time.Duration {
	for {
		p.mu.Lock()
		b, due, wait := p.lookups.takeDue(time.Now())
		p.mu.Unlock()
		if !due {
			return wait
		}
		for rest := b.keys; len(rest) > 0; {
			chunk := rest[:min(len(rest), rereadChunk*b.target.keySize)]
			rest = rest[len(chunk):]
			p.mu.Lock()
			if p.capture.target(b.id) == b.target {
				p.lookups.dropped += b.target.reread(chunk)
			}
			p.mu.Unlock()
		}
		p.mu.Lock()
		p.lookups.spare = append(p.lookups.spare, b.keys)
		p.mu.Unlock()
	}
}

// reread makes the table reread the entries of keys that have a live record. It returns the number of keys that it
// drops instead, because too many rereads are pending.
func (t *target) reread(keys []byte) (dropped uint64) {
	size, pending := t.keySize, t.table.Stats().PendingRereads
	t.table.Update(func(tx *table.Tx) {
		var rec table.Record
		for ; len(keys) > 0; keys = keys[size:] {
			key := t.tableKey(keys[:size])
			switch {
			case !tx.Get(key, &rec) || rec.Delete:
			case pending >= maxPendingRereads:
				dropped++
			default:
				tx.RequestReread(t.tableKey(key))
				pending++
			}
		}
	})
	return dropped
}

// errNoLookups is the reason of [Capture.WatchLookups] if Options.Lookups is false.
var errNoLookups = errors.New("the hook on lookups is not attached")

// WatchLookups makes the table of a watched map reread an entry after a program has looked it up, so that it finds
// changes in place within MaxInPlaceDelay. It fails if the hook on lookups is not attached: Options.Lookups and Options.Uses are false, the
// attach method is not fexit, or the kernel refused it.
func (c *Capture) WatchLookups(id uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lookupsErr != nil {
		return c.lookupsErr
	}
	if c.watches == nil || c.targets[id] == nil {
		return fmt.Errorf("watch lookups: map %d is not watched", id)
	}
	c.watches.reportLookups(id)
	return nil
}

// lookupConstants returns the constants of the BPF programs for a length of a jiffy.
func lookupConstants(tick time.Duration) map[string]any {
	return map[string]any{
		"lookup_pause":     uint32((lookupPause + tick - 1) / tick),
		"lookups_per_tick": uint32(max(1, maxLookups*tick/time.Second)),
		"lookup_burst":     uint32(maxLookups / 10),
	}
}
