package replicate

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
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
	asked      uint64 // the first position given out here after the map was asked for
	before     uint64 // the same of the walk
	sweep      bool   // delete what the walk does not meet
	synced     bool   // a walk has come to its end
	walks      int    // in a row that the table refused something of
	rewalk     time.Time
	pending    ackQueue
	acked      uint64
	count      traffic
	accepted   uint64
	refused    uint64
	told       int // records since the walk began
	excepted   exceptions
	comparing  comparing
	requesting requesting
	reporting  reporting

	// Of the receiving goroutine.
	job    *job    // of the batch, if that is one of a job
	permit *permit // of the batch
	// verdicts say of the batch's owners whether their records are accepted.
	verdicts []rejection
	decoder  *schema.Decoder // from the peer's schema
	printer  wirePrinter     // of the peer's keys

	// And of it during a merge.
	apply func(*table.Tx)
	group func([]wireDelta) error
	tx    *table.Tx
	// tableRejected is the table's count of rejected records, limitLogged that it was logged that
	// the peer has more than the table holds.
	tableRejected uint64
	limitLogged   bool
	ids           []table.OwnerID
	counts        []bool // by owner: see judge
	knows         []table.Replace
	wires         [table.WarmKeys]wireDelta
	keys          [table.WarmKeys][]byte
	delta         table.Delta
	opt           table.RemoteOptions
	now           int64
	times         schema.Times // between the peer's wall clock and this node's kernel
	limit         table.Version
	result        merged
}

func newIntake(l *link, m *localMap) *intake {
	in := &intake{l: l, m: m, state: StateWaiting}
	in.requesting = newRequesting(l.r.view.Load(), l.peer, time.Now())
	in.apply, in.group = in.mergeAll, in.mergeGroup
	return in
}

// reset ends the subscription; the position stays.
func (in *intake) reset() {
	in.index, in.dropped = 0, 0
	in.state = StateWaiting
	in.pending.n, in.acked = 0, 0
	in.comparing.reset()
	in.requesting.reset()
	poke(in.l.r.wake)
	in.reporting = reporting{}
}

// accept begins a walk, unless the peer's map does not fit. The lock is held.
func (in *intake) accept(a *mapsyncv1.MapAccepted) error {
	if err := in.compile(a.GetSchema()); err != nil {
		in.unfit(err, time.Now())
		return nil
	}
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
		// So has whatever others have told since the walk was asked for: the peer may
		// have made it after that.
		in.before = in.asked
		in.position = a.GetPosition()
		in.rewalk, in.told = time.Time{}, 0
		in.comparing.restart()
		in.requesting.token = 0
		in.excepted.begin()
	}
	// The peer counts from here; what was merged before may still be on its way
	// to the kernel.
	in.pending.push(in.position, in.head)
	in.generation = a.GetGeneration()
	in.state, in.err = StateSyncing, nil
	poke(in.l.r.wake)
	return nil
}

// compile makes the decoder of what the peer will send.
func (in *intake) compile(p *mapsyncv1.Schema) error {
	theirs, err := fromProto(in.m.name, p)
	if err != nil {
		return err
	}
	in.decoder, err = schema.NewDecoder(theirs, in.m.layout.Schema, in.m.layout.Links)
	if err != nil {
		return err
	}
	in.printer = newWirePrinter(theirs)
	in.delta.Keep = in.delta.Keep[:0]
	for _, k := range in.decoder.Keep() {
		in.delta.Keep = append(in.delta.Keep, table.Range(k))
	}
	return nil
}

// unfit sets a map aside whose schema on the peer cannot be brought into this
// node's. It is asked for again from time to time, since the peer's map may be
// replaced. The lock is held.
func (in *intake) unfit(err error, now time.Time) {
	in.l.r.count.mapsUnfit.Add(1)
	err = fmt.Errorf("map of %s does not fit: %w", in.l.peer.Node, err)
	if text(in.err) != err.Error() {
		in.l.r.opt.Logger.Warn("map of peer refused", slog.String("peer", in.l.peer.Node),
			slog.String("map", in.m.name), slog.Any("error", err))
	}
	in.giveUp(StateRefused, err, now.Add(in.l.r.opt.unfit))
}

// merged notes a batch that was taken in. The lock is held.
func (in *intake) merged(b *batch, res merged, now time.Time) {
	in.noteRejected(&res)
	in.position, in.head = b.position, res.head
	in.pending.push(b.position, res.head)
	in.count.add(b.deltas, len(b.data))
	in.accepted += res.accepted
	in.told += b.deltas
	in.backoff, in.requesting.moved = 0, now
	// A peer that has other records to send sends these first.
	if j := in.comparing.job; j != nil && (b.retold || b.request || !b.caughtUp) {
		j.moved = now
	}
	if b.retold {
		return // neither the walk's end nor a reason to walk again
	}
	in.refused += res.refused + res.ahead
	excepted := res.outOfRange + res.withoutLink
	if n := res.refused - excepted; n+res.ahead > 0 {
		in.err = fmt.Errorf("%d records refused, %d too far ahead of the clock", n, res.ahead)
	}
	// An entry whose interface does not exist may fit later. A number that does not fit
	// comes again when it changes.
	if res.refused+res.ahead > res.outOfRange {
		if in.rewalk.IsZero() {
			in.rewalk = now.Add(in.l.r.opt.RewalkDelay << in.walks)
			in.walks = min(in.walks+1, maxRewalks)
		}
	}
	switch {
	case b.request: // out of turn
	case b.caughtUp:
		in.caughtUp()
	default:
		in.state = StateSyncing
	}
}

// caughtUp notes that the peer has sent all that it had. The lock is held.
func (in *intake) caughtUp() {
	if !in.synced {
		poke(in.l.r.wake)
	}
	in.requesting.endAll()
	in.sweep, in.synced = false, true
	in.excepted.end()
	in.state = StateCaughtUp
	if in.rewalk.IsZero() {
		in.walks = 0
	}
}

// rewalkDue reports whether the next subscription is to begin at 0.
func (in *intake) rewalkDue(now time.Time) bool {
	return !in.rewalk.IsZero() && now.After(in.rewalk)
}

// fail gives the subscription up for a while. The lock is held.
func (in *intake) fail(err error, now time.Time) {
	in.backoff = min(max(2*in.backoff, in.l.r.opt.MinBackoff), 30*time.Second)
	in.giveUp(StateFailed, err, now.Add(in.backoff))
}

// giveUp ends the subscription, and has another made at some time.
func (in *intake) giveUp(state State, err error, retry time.Time) {
	dropped := in.index
	delete(in.l.byIndex, in.index)
	in.reset()
	in.dropped, in.state, in.err, in.retry = dropped, state, err, retry
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
