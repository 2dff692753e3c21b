package replicate

import (
	"fmt"
	"slices"
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
	return f.cursor != nil && f.open && f.exhausted && !f.observe && !f.lost
}

// digest says what the table holds, as far as this node answers to the peer for it.
func (f *feed) digest(tx *table.Tx) {
	t := &f.telling
	t.hurry.Store(false)
	parts := t.asked.Swap(false)
	m := &mapsyncv1.Digest{
		Map: f.index, Position: f.cursor.Position(), Key: f.m.table.DigestID(), Scope: f.m.table.DigestScope(),
	}
	var sum uint64
	for _, node := range f.answersFor(tx, parts) {
		d := &mapsyncv1.NodeDigest{Node: node}
		var buckets *table.Buckets
		if parts {
			buckets = new(table.Buckets)
		}
		g, ok := tx.Digest(node, buckets)
		if !ok {
			continue
		}
		d.Sum, d.Loose, d.Live = g.Sum, g.Loose, uint64(g.Live)
		if parts {
			d.Buckets = appendParts(make([]byte, 0, bucketSize*len(buckets)), buckets)
		}
		m.Nodes = append(m.Nodes, d)
		sum = sum*31 + g.Sum
	}
	interval := f.s.r.opt.compare
	if sum == t.last && !parts {
		interval *= quietCompare
	}
	t.made, t.due, t.at, t.last, t.out = t.now, t.now.Add(interval), m.Position, sum, m
}

// answersFor returns the nodes whose digests the peer is told; with the peer itself if it
// is told their parts.
func (f *feed) answersFor(tx *table.Tx, parts bool) (nodes []string) {
	v, target := f.s.r.view.Load(), f.s.target.Node
	tx.DigestNodes(func(node string) {
		if v.comparable(node, v.self, target) || (parts && node == target) {
			nodes = append(nodes, node)
		}
	})
	slices.SortFunc(nodes, func(a, b string) int { return v.rank(a, target) - v.rank(b, target) })
	return nodes[:min(len(nodes), maxDigests)]
}

// rank orders nodes by how much their digests matter, should there be too many.
func (v *view) rank(node, target string) int {
	switch node {
	case v.self:
		return 0
	case target:
		return 1
	}
	return 2
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
	r.enc = newEncoder(f.index, f.s.r.opt.Self, f.m.codec)
	r.enc.retold = true
	f.telling.tale = r
	f.s.r.count.retellings.Add(1)
}

// again fills a batch with the next records in the buckets.
func (f *feed) again(tx *table.Tx) {
	r := f.telling.tale
	r.enc.times = f.s.r.opt.Times()
	r.enc.begin(maxBatchDeltas)
	r.full = true
	for n := 0; n < maxBatchWalk && r.enc.fits(); n++ {
		if !tx.Next(r.cursor, &r.rec) {
			r.over = true
			return
		}
		if r.rec.Version != 0 && r.in.Has(tx.Bucket(r.rec.Key)) {
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
	deltas := r.enc.deltas
	if deltas == 0 {
		r.enc.drop()
		return nil
	}
	r.records += uint64(deltas)
	f.s.lastSent = time.Now()
	out := r.enc.finish(f.sent.Load(), f.sent.Load(), false)
	f.s.count.add(deltas, out.data.Len())
	f.s.r.count.sent.add(deltas, out.data.Len())
	f.s.r.count.retold.Add(uint64(deltas))
	if err := f.s.send.SendMsg(out); err != nil {
		return fmt.Errorf("send batch of map %q again: %w", f.name, err)
	}
	return nil
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
