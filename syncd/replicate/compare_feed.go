package replicate

import (
	"fmt"
	"sync/atomic"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// telling is the part of a feed that lets the peer compare. It belongs to the sending
// goroutine but for the atomic fields.
type telling struct {
	asked  atomic.Bool                     // for the parts of the digests
	hurry  atomic.Bool                     // the next digest is due now
	retell atomic.Pointer[table.BucketSet] // asked for and not answered yet

	now  time.Time
	made time.Time // of the last digest
	due  time.Time
	at   uint64            // the position that it stood for
	last uint64            // what it said, to see whether that changes
	out  *mapsyncv1.Digest // to be sent after the batch that it stands behind
	tale *retelling        // the answer to retell
}

// retelling is a walk over all records in some buckets.
type retelling struct {
	in      *table.BucketSet
	cursor  *table.Cursor
	enc     *encoder
	rec     table.Record
	full    bool // the encoder has a batch
	records uint64
	untold  uint64
	over    bool // it was at the end of the order when the feed was, too
}

func (t *telling) close() {
	if t.tale != nil {
		t.tale.cursor.Close()
		t.tale.enc.drop()
		t.tale = nil
	}
}

// wanted reports whether the peer waits for something.
func (t *telling) wanted() bool { return t.asked.Load() || t.hurry.Load() || t.retell.Load() != nil }

// dueAt returns when the next digest is to be made, of what the walk has got to. One that
// is asked for comes sooner, but not as often as the peer likes; while nothing changes, the
// pauses are longer.
func (t *telling) dueAt(position uint64, interval time.Duration) time.Time {
	switch {
	case t.asked.Load() || t.hurry.Load():
		return t.made.Add(interval / 4)
	case position != t.at:
		return t.made.Add(interval)
	}
	return t.due
}

// look encodes a batch, and, if nothing is left to send, a digest when one is due, and
// what is to be told again. All is of the same moment: the peer knows of a key that it
// did not meet that it has not come to belong to another node meanwhile.
func (f *feed) look(tx *table.Tx) {
	f.encode(tx)
	if f.requested.walk != nil {
		f.passed(tx)
	}
	if !f.comparable() {
		return
	}
	t := &f.telling
	if t.tale != nil {
		f.again(tx)
	}
	if !t.now.Before(t.dueAt(f.cursor.Position(), f.s.r.opt.compare)) {
		f.digest(tx)
	}
}

// comparable reports whether the peer could compare what it holds with what it was told.
func (f *feed) comparable() bool {
	return f.cursor != nil && f.exhausted && !f.observe && !f.requested.pending()
}

// digest makes the message about what the table holds and the receiver should hold too.
func (f *feed) digest(tx *table.Tx) {
	t := &f.telling
	t.hurry.Store(false)
	parts := t.asked.Swap(false)
	v := f.s.r.view.Load()
	m := &mapsyncv1.Digest{
		Map: f.index, Position: f.cursor.Position(), Key: f.m.table.DigestID(), Scope: f.m.table.DigestScope(),
		Members: v.members,
	}
	missing, unsent := f.m.leftOut(tx)
	m.Unsent = uint64(unsent)
	var sum uint64
	for _, node := range f.compares(v, parts) {
		g, buckets := digestOf(tx, node, parts)
		missing.takeOut(func(owner string) bool { return owner == node }, &g.Digest, buckets)
		m.Nodes = append(m.Nodes, g.message(node, buckets))
		sum = sum*31 + g.Sum
	}
	g, buckets := orphanDigest(tx, v, parts)
	missing.takeOut(v.orphaned, &g.Digest, buckets)
	m.Orphaned = g.message("", buckets)
	sum = sum*31 + g.Sum
	interval := f.s.r.opt.compare
	if sum == t.last && !parts {
		interval *= quietCompare
	}
	t.made, t.due, t.at, t.last, t.out = t.now, t.now.Add(interval), m.Position, sum, m
}

// compares returns the live nodes whose digests are sent: this one, those whose records
// the receiver requests, and the receiver itself with the parts.
func (f *feed) compares(v *view, parts bool) []string {
	nodes := append(make([]string, 0, 2), v.self.Node)
	for _, node := range f.requested.cover.request.nodes {
		if node != v.self.Node && node != f.s.target.Node {
			nodes = append(nodes, node)
		}
	}
	if parts {
		nodes = append(nodes, f.s.target.Node)
	}
	return nodes
}

// quietCompare is how many times as long the pause between digests is while nothing
// changes.
const quietCompare = 10

// compare sends what look made, and a batch of what is told again. It reports whether
// there is more to do at once.
func (f *feed) compare() (more bool, err error) {
	t := &f.telling
	if m := t.out; m != nil {
		t.out = nil
		if err := f.tell(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Digest{Digest: m}}); err != nil {
			return false, err
		}
	}
	switch {
	case t.retell.Load() == nil:
		return false, nil
	case t.tale == nil:
		if f.open {
			f.beginAgain(t.retell.Load())
		}
		return f.open, nil
	}
	tale := t.tale
	if err := f.sendAgain(); err != nil || !tale.over {
		return true, err
	}
	t.close()
	t.retell.Store(nil) // before the peer can ask for more
	return false, f.tell(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Retold{
		Retold: &mapsyncv1.Retold{Map: f.index, Records: tale.records, Untold: tale.untold},
	}})
}

func (f *feed) beginAgain(in *table.BucketSet) {
	r := &retelling{in: in, cursor: f.m.table.NewCursor(0)}
	r.enc = newEncoder(f.index, f.s.r.opt.Self, f.m)
	r.enc.expiries, r.enc.observe = f.expiries, f.observe
	r.enc.retold = true
	f.telling.tale = r
	f.s.r.count.retellings.Add(1)
}

// again fills a batch with the next records in the buckets.
func (f *feed) again(tx *table.Tx) {
	r := f.telling.tale
	r.enc.times = f.s.r.opt.Times()
	r.enc.check(tx)
	r.enc.begin(maxBatchDeltas)
	r.full = true
	for n := 0; n < maxBatchWalk && r.enc.fits(); n++ {
		if !tx.Next(r.cursor, &r.rec) {
			r.over = true
			return
		}
		if r.in.Has(tx.Bucket(r.rec.Key)) {
			r.enc.add(tx, r.enc.slot(r.rec.Owner), &r.rec)
		}
	}
}

func (f *feed) sendAgain() error {
	r := f.telling.tale
	if !r.full {
		return nil
	}
	r.full = false
	r.untold += uint64(r.enc.failed)
	r.records += uint64(r.enc.deltas)
	f.s.r.count.retold.Add(uint64(r.enc.deltas))
	return f.sendOutOfTurn(r.enc)
}

// asked notes that the peer wants the parts of the digests. The lock is held.
func (s *session) asked(m *mapsyncv1.CompareRequest) error {
	f, err := s.comparing(m.GetMap())
	if f == nil || err != nil {
		return err
	}
	f.telling.asked.Store(true)
	poke(s.wake)
	return nil
}

// askedAgain notes that the peer wants records again. The lock is held.
func (s *session) askedAgain(m *mapsyncv1.RetellRequest) error {
	f, err := s.comparing(m.GetMap())
	if f == nil || err != nil {
		return err
	}
	set := setOf(m.GetBuckets())
	switch {
	case set == nil:
		return fmt.Errorf("request for buckets in %d bytes: %w", len(m.GetBuckets()), errProtocol)
	case !f.telling.retell.CompareAndSwap(nil, set):
		return fmt.Errorf("second request to be told again of map %q: %w", f.name, errProtocol)
	}
	poke(s.wake)
	return nil
}

// comparing returns the feed of a request to compare, nil if that ended meanwhile.
func (s *session) comparing(index uint32) (*feed, error) {
	if index == 0 || index > s.lastIndex {
		return nil, fmt.Errorf("request to compare unknown subscription %d: %w", index, errProtocol)
	}
	f := s.find(index)
	if f != nil && f.observe {
		return nil, fmt.Errorf("request to compare map %q by one who holds nothing: %w", f.name, errProtocol)
	}
	return f, nil
}
