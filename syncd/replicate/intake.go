package replicate

import (
	"errors"
	"fmt"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// errGap is wrapped by the error of a batch that does not follow on the last.
var errGap = errors.New("gap in the changes of a map")

// maxRewalks bounds how often the delay of walking again is doubled.
const maxRewalks = 4

// intake is one map on its way from one life of a peer. Its fields are guarded
// by the link's lock, but those of the receiving goroutine, which alone moves
// the position.
type intake struct {
	l *link
	m *localMap

	index   uint32 // of the subscription on this stream; 0 = none
	dropped uint32 // a subscription to be ended
	state   State
	err     error
	retry   time.Time // subscribe not before
	backoff time.Duration

	generation uint64 // of the peer's map; 0 = nothing received yet
	position   uint64
	head       uint64 // the table's, after the last delta was merged
	before     uint64 // the first position that the walk gave out here
	sweep      bool   // delete what the walk does not meet
	synced     bool   // a walk has come to its end
	walks      int    // in a row that the table refused something of
	rewalk     time.Time
	pending    ackQueue
	acked      uint64
	count      traffic
	accepted   uint64
	refused    uint64

	// Of the receiving goroutine, during a merge.
	apply  func(*table.Tx)
	group  func([]wireDelta) error
	tx     *table.Tx
	ids    []table.OwnerID
	wires  [table.WarmKeys]wireDelta
	keys   [table.WarmKeys][]byte
	delta  table.Delta
	opt    table.RemoteOptions
	now    int64
	limit  table.Version
	result merged
}

// merged is what became of a batch.
type merged struct {
	err                      error
	head                     uint64
	accepted, refused, ahead uint64
}

func newIntake(l *link, m *localMap) *intake {
	in := &intake{l: l, m: m, state: StateWaiting}
	in.apply, in.group = in.mergeAll, in.mergeGroup
	return in
}

// reset ends the subscription; the position stays.
func (in *intake) reset() {
	in.index, in.dropped = 0, 0
	in.state = StateWaiting
	in.pending.n, in.acked = 0, 0
}

// accept begins a walk. The lock is held.
func (in *intake) accept(a *mapsyncv1.MapAccepted, head uint64) error {
	known := in.generation != 0 && in.generation == a.GetGeneration()
	if !a.GetReset_() {
		if !known || a.GetPosition() != in.position {
			return fmt.Errorf("resume map %q at %d of generation %d, expected %d of %d: %w", in.m.name,
				a.GetPosition(), a.GetGeneration(), in.position, in.generation, errProtocol)
		}
	} else {
		// What was received of this very map and is not met again is no longer
		// there. Of another map that says nothing: see table.Options.SameMap.
		in.sweep = known && (in.sweep || in.position > 0)
		in.before = head + 1
		in.position = a.GetPosition()
		in.rewalk = time.Time{}
	}
	// The peer counts from here; what was merged before may still be on its way
	// to the kernel.
	in.pending.push(in.position, in.head)
	in.generation = a.GetGeneration()
	in.state, in.err = StateSyncing, nil
	return nil
}

// merge takes in a batch. The lock is not held. An error is one of this map.
func (in *intake) merge(b *batch) (merged, error) {
	if b.previous != in.position || b.position < b.previous {
		in.l.r.count.gaps.Add(1)
		return merged{}, fmt.Errorf("merge batch of map %q from %d to %d at %d: %w",
			in.m.name, b.previous, b.position, in.position, errGap)
	}
	in.result = merged{head: in.head}
	if b.deltas > 0 {
		now := in.l.r.opt.Now()
		in.now = now.UnixNano()
		in.limit = table.Version(now.Add(in.l.r.opt.MaxClockAhead).UnixNano())
		in.opt = table.RemoteOptions{Touch: in.sweep}
		in.m.table.Update(in.apply)
		in.tx = nil
	}
	if in.result.err != nil {
		return merged{}, fmt.Errorf("merge batch of map %q: %w", in.m.name, in.result.err)
	}
	if b.caughtUp && in.sweep {
		in.sweepRest()
	}
	return in.result, nil
}

func (in *intake) mergeAll(tx *table.Tx) {
	b := &in.l.batch
	in.tx, in.ids = tx, in.ids[:0]
	for _, w := range b.owners {
		in.ids = append(in.ids, tx.Intern(w.owner()))
	}
	in.result.err = b.groups(in.wires[:], in.group)
	in.result.head = tx.Head()
}

// mergeGroup merges deltas whose keys the table reads ahead.
func (in *intake) mergeGroup(wires []wireDelta) error {
	for i := range wires {
		in.keys[i] = wires[i].key
	}
	in.tx.Warm(in.keys[:len(wires)])
	for i := range wires {
		if err := in.mergeOne(&wires[i]); err != nil {
			return err
		}
	}
	return nil
}

func (in *intake) mergeOne(w *wireDelta) error {
	d := &in.delta
	switch w.operation {
	case mapsyncv1.Operation_OPERATION_UPDATE:
		d.Value, d.Delete = w.value, false
	case mapsyncv1.Operation_OPERATION_DELETE:
		d.Value, d.Delete = nil, true
	default:
		return fmt.Errorf("read operation %d: %w", w.operation, errMalformed)
	}
	switch {
	case len(w.key) != in.m.layout.KeySize:
		return fmt.Errorf("read key of %d bytes for one of %d: %w", len(w.key), in.m.layout.KeySize, errMalformed)
	case !d.Delete && len(w.value) != in.m.layout.ValueSize:
		return fmt.Errorf("read value of %d bytes for one of %d: %w", len(w.value), in.m.layout.ValueSize, errMalformed)
	case w.version == 0:
		return fmt.Errorf("read record without a version: %w", errMalformed)
	case int(w.owner) >= len(in.ids):
		return fmt.Errorf("read owner %d of %d: %w", w.owner, len(in.ids), errMalformed)
	}
	d.Key, d.Version, d.Owner = w.key, table.Version(w.version), in.ids[w.owner]
	if d.Version > in.limit {
		in.result.ahead++
		return nil
	}
	switch in.tx.Remote(d, in.now, in.opt) {
	case table.Accepted:
		in.result.accepted++
	case table.Refused:
		in.result.refused++
	}
	return nil
}

// sweepRest deletes what the peer had and the walk did not meet.
func (in *intake) sweepRest() {
	c := in.m.table.NewCursor(0)
	defer c.Close()
	now := in.l.r.opt.Now().UnixNano()
	for more := true; more; {
		in.m.table.Update(func(tx *table.Tx) {
			more = tx.Sweep(in.l.peer.Node, in.before, now, c, touchChunk)
			in.result.head = tx.Head()
		})
	}
}

// merged notes a batch that was taken in. The lock is held.
func (in *intake) merged(b *batch, res merged, now time.Time) {
	in.position, in.head = b.position, res.head
	in.pending.push(b.position, res.head)
	in.count.add(b.deltas, len(b.data))
	in.accepted += res.accepted
	in.backoff = 0
	if n := res.refused + res.ahead; n > 0 {
		in.refused += n
		in.err = fmt.Errorf("%d records refused by the table, %d too far ahead of the clock", res.refused, res.ahead)
		if in.rewalk.IsZero() {
			in.rewalk = now.Add(in.l.r.opt.RewalkDelay << in.walks)
			in.walks = min(in.walks+1, maxRewalks)
		}
	}
	if b.caughtUp {
		in.sweep, in.synced = false, true
		in.state = StateCaughtUp
		if in.rewalk.IsZero() {
			in.walks = 0
		}
	} else {
		in.state = StateSyncing
	}
}

// rewalkDue reports whether the next subscription is to begin at 0.
func (in *intake) rewalkDue(now time.Time) bool {
	return !in.rewalk.IsZero() && now.After(in.rewalk)
}

// fail gives the subscription up for a while. The lock is held.
func (in *intake) fail(err error, now time.Time) {
	dropped := in.index
	delete(in.l.byIndex, in.index)
	in.reset()
	in.dropped, in.state, in.err = dropped, StateFailed, err
	in.backoff = min(max(2*in.backoff, in.l.r.opt.MinBackoff), 30*time.Second)
	in.retry = now.Add(in.backoff)
	poke(in.l.wake)
}

// ackQueue is positions that wait for the table's writer, oldest first. When it
// is full the latest takes the place of the one before: it stands for both.
type ackQueue struct {
	points [32]ackPoint
	n      int
}

// ackPoint says that a position is in the kernel map once the writer has
// reached a position of the table.
type ackPoint struct {
	position, head uint64
}

func (q *ackQueue) push(position, head uint64) {
	if q.n == len(q.points) {
		q.n--
	}
	q.points[q.n] = ackPoint{position, head}
	q.n++
}

// pop returns the highest position that the writer has reached.
func (q *ackQueue) pop(applied uint64) (position uint64, ok bool) {
	n := 0
	for n < q.n && q.points[n].head <= applied {
		position, ok = q.points[n].position, true
		n++
	}
	q.n = copy(q.points[:], q.points[n:q.n])
	return position, ok
}
