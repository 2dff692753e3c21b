package replicate

import (
	"fmt"
	"log/slog"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

const (
	// explainFor is how long a difference stays explained that was looked into and is
	// the peer's to find: that has not heard of something newer here.
	explainFor = time.Minute
	// maxRepairPause bounds the pause between repairs that do not put things right.
	maxRepairPause = time.Minute
)

// comparing is the part of an intake that compares. The link's lock guards it.
type comparing struct {
	agreed     bool
	current    bool      // they agreed on this subscription
	at         time.Time // when digests agreed last
	position   uint64    // of the peer, up to which they did
	forced     time.Time // only what agreed since counts
	departures uint64    // of the view under which they agreed last
	// impossible says why digests cannot be compared, empty if they can. unknown is the
	// same of the last comparison alone, and unknowns how many in a row there were.
	impossible, unknown string
	unknowns            int
	// divergent is the number of entries that differ, as far as is known.
	divergent int
	live      int // records that the peer has of itself
	unsent    int // records that the peer cannot send

	suspects map[string]*suspect // nodes whose digests differ
	ask      bool                // for the parts of digests, with the next request
	want     *table.BucketSet    // to be told again, with the next request
	job      *job                // the answer to that, under way
	list     *listing            // wanted, see Diff
	// spent is the time for which digests of the peer were compared: see admit.
	spent time.Time
	retry time.Time // no repair before
	pause time.Duration
}

// suspect is a node whose digest differs from the peer's.
type suspect struct {
	rounds    int
	delta     table.Buckets // of the round before: theirs less ours
	loose     uint64        // likewise
	same      int           // rounds in a row with that
	proven    table.BucketSet
	explained map[int]uint64 // deltas that were looked into, by bucket
	until     time.Time      // of explained
	fresh     *table.BucketSet
}

// job is records that are told again.
type job struct {
	in     *table.BucketSet
	before uint64 // the first position that this can give out here
	head   uint64 // the table's, at the end
	found  int    // entries that differed and were put right
	left   int    // entries that differ still, and are no exceptions
	list   *listing
	moved  time.Time // when it began or the peer sent a part of it last
}

// stuck reports whether the peer has sent nothing of a job for longer than a peer may stall.
func (c *comparing) stuck(now time.Time, stall time.Duration) bool {
	return c.job != nil && now.Sub(c.job.moved) > stall
}

// reset forgets what a stream was to bring.
func (c *comparing) reset() {
	if c.job != nil && c.job.list != nil {
		c.job.list.end(errSubscriptionEnded)
	}
	if c.list != nil {
		c.list.end(errSubscriptionEnded)
	}
	c.current, c.suspects, c.ask, c.want, c.job, c.list = false, nil, false, nil, nil, nil
}

// restart forgets what was agreed on before a walk from the beginning.
func (c *comparing) restart() {
	c.agreed, c.suspects, c.want = false, nil, nil
}

// compared is what of a digest message was compared.
type compared struct {
	nodeDigest
	mine  table.Digest
	parts *table.Buckets // nil unless the peer sent its own
	equal bool
}

// compare takes in what the peer says that it holds. The lock is held.
func (in *intake) compare(m *mapsyncv1.Digest, now time.Time) error {
	if in.state != StateSyncing && in.state != StateCaughtUp {
		return fmt.Errorf("receive digest of map %q before it was accepted: %w", in.m.name, errProtocol)
	}
	d, err := readDigests(m)
	if err != nil {
		return err
	}
	if d.position < in.position {
		return fmt.Errorf("receive digest of map %q at %d, after %d: %w", in.m.name, d.position, in.position, errProtocol)
	}
	c := &in.comparing
	if d.key != in.m.table.DigestID() {
		in.l.r.count.impossible.Add(1)
		in.cannotCompare("the peer makes digests with another key: have all nodes the same gossip key?")
		return nil
	}
	c.unsent = int(min(m.GetUnsent(), 1<<31))
	exact := in.decoder.Same() && d.scope == in.m.table.DigestScope()
	r := in.compareDigests(&d, exact)
	if c.list != nil && c.job == nil && c.want == nil && r.unknown == "" {
		in.chooseListed(&d, r.all, exact)
	}
	in.conclude(&r, exact, d.position, now)
	return nil
}

// conclude counts a comparison, and acts on what came of it.
func (in *intake) conclude(r *outcome, exact bool, position uint64, now time.Time) {
	c := &in.comparing
	in.countLimited(r)
	switch {
	case r.differ:
		in.l.r.count.differing.Add(1)
	case r.unknown != "":
		in.l.r.count.impossible.Add(1)
	default:
		in.l.r.count.agreeing.Add(1)
	}
	if r.unknown != "" {
		in.unknown(r.unknown)
	} else if c.unknown, c.unknowns = "", 0; exact || !r.differ {
		c.impossible = ""
	}
	switch {
	case !r.differ && r.unknown == "":
		in.agree(position, now)
	case !r.differ:
		c.suspects = nil
	case exact:
		in.suspectBuckets(r.all, r.unknown == "", position, now)
	default:
		in.suspectNodes(r.all, now)
	}
}

// maxUnknowns is after how many comparisons in a row it is reported that they prove
// nothing: nodes learn of a change of membership one after another.
const maxUnknowns = 4

// unknown notes that a comparison proves nothing, and why. An earlier proof is not
// proven any more once that lasts.
func (in *intake) unknown(why string) {
	c := &in.comparing
	if c.list != nil {
		c.ask = true
		poke(in.l.wake)
	}
	if c.unknown = why; c.unknowns < maxUnknowns {
		c.unknowns++
		return
	}
	in.cannotCompare(why)
}

func (in *intake) cannotCompare(why string) {
	c := &in.comparing
	if c.impossible != why {
		in.l.r.opt.Logger.Warn("map cannot be compared with peer's", slog.String("peer", in.l.peer.Node),
			slog.String("map", in.m.name), slog.String("reason", why))
	}
	c.impossible, c.agreed, c.divergent, c.suspects = why, false, 0, nil
	if c.list != nil && c.job == nil {
		c.list.end(fmt.Errorf("compare map %q with %s: %s", in.m.name, in.l.peer.Node, why))
		c.list = nil
	}
}

// outcome is what became of one message of digests.
type outcome struct {
	all     []compared
	differ  bool   // at least one of them differs
	unknown string // why not all was compared that is to be, empty: all was
}

// compareDigests compares the peer's digests with this node's.
func (in *intake) compareDigests(d *digests, exact bool) (r outcome) {
	v := in.l.r.view.Load()
	if d.unknown != "" {
		r.unknown = fmt.Sprintf("the peer cannot compare all: %.256q", d.unknown)
	}
	own := false
	in.m.table.View(func(tx *table.Tx) {
		for _, n := range d.nodes {
			switch {
			case n.node == in.l.peer.Node:
				in.comparing.live, own = n.sums.Live, true
			case !in.requesting.wanted.requests(n.node) || !in.settled():
				continue
			}
			mine, parts := digestOf(tx, n.node, n.parts != nil)
			if !exact {
				mine.Loose += in.loose(tx, func(owner string) bool { return owner == n.node })
			}
			r.add(compared{nodeDigest: n, mine: mine.Digest, parts: parts}, exact)
		}
		if why := in.orphanDigests(tx, v, d, exact, &r); why != "" && r.unknown == "" {
			r.unknown = why
		}
	})
	if !own && r.unknown == "" {
		r.unknown = "the peer sends no digest of its own records"
	}
	return r
}

// orphanDigests compares orphaned records, of which no node is the sender that the others
// compare with: every pair of nodes compares them. It returns why it could not.
func (in *intake) orphanDigests(tx *table.Tx, v *view, d *digests, exact bool, r *outcome) (unknown string) {
	switch {
	case !in.l.ownerRequests:
		return "" // an older version: its fallback sender is compared with
	case d.orphaned == nil:
		return "the peer sends no digest of orphaned records"
	case d.members != v.members:
		return "this node and the peer see different live nodes"
	case !in.m.settled.Load():
		return "orphaned records are still being received"
	}
	mine, parts := orphanDigest(tx, v, d.orphaned.parts != nil)
	if !exact {
		mine.Loose += in.loose(tx, v.orphaned)
	}
	missing, _ := in.m.leftOut(tx) // the peer leaves out its own
	missing.takeOut(v.orphaned, &mine.Digest, parts)
	r.add(compared{nodeDigest: *d.orphaned, mine: mine.Digest, parts: parts}, exact)
	return ""
}

func (r *outcome) add(c compared, exact bool) {
	c.equal = c.mine.Sum == c.sums.Sum
	if !exact {
		c.equal = c.mine.Loose == c.sums.Loose
	}
	r.differ = r.differ || !c.equal
	r.all = append(r.all, c)
}

// agree notes that this node holds what the peer told.
func (in *intake) agree(position uint64, now time.Time) {
	c := &in.comparing
	if !c.agreed && c.divergent > 0 {
		in.l.r.opt.Logger.Info("map agrees with peer's again", slog.String("peer", in.l.peer.Node), slog.String("map", in.m.name))
	}
	c.agreed, c.current, c.at, c.position, c.divergent = true, true, now, position, 0
	c.departures = in.l.r.view.Load().departures
	c.suspects, c.ask, c.pause = nil, c.list != nil, 0
}

// suspectBuckets finds the buckets that differ by the same sum as the round before: what
// is under way changes from one to the next.
func (in *intake) suspectBuckets(all []compared, complete bool, position uint64, now time.Time) {
	c := &in.comparing
	old := c.suspects
	c.suspects = make(map[string]*suspect)
	confirmed, proven := new(table.BucketSet), complete
	for i := range all {
		n := &all[i]
		if n.equal {
			continue
		}
		s := old[n.node]
		if s == nil {
			s = &suspect{}
		}
		c.suspects[n.node] = s
		if n.nodeDigest.parts != nil {
			s.round(n, confirmed, now)
		}
		proven = proven && s.proven.Len() == table.DigestBuckets
	}
	c.ask = true
	poke(in.l.wake)
	switch {
	case confirmed.Len() > 0:
		// Whether it is more than something under way for long, the records will tell.
		if c.job == nil && c.want == nil && !now.Before(c.retry) {
			c.want = confirmed
		}
	case proven:
		// Each bucket was equal at some time since the first doubt.
		in.agree(position, now)
	}
}

// round compares the parts of one digest.
func (s *suspect) round(n *compared, confirmed *table.BucketSet, now time.Time) {
	if now.After(s.until) {
		s.explained = nil
	}
	for b := range n.parts {
		d := n.nodeDigest.parts[b] - n.parts[b]
		if s.fresh != nil && s.fresh.Has(b) && d != 0 {
			if s.explained == nil {
				s.explained, s.until = make(map[int]uint64), now.Add(explainFor)
			}
			s.explained[b] = d
		}
		switch {
		case d == 0 || s.explained[b] == d:
			s.proven.Add(b)
		case s.rounds > 0 && d == s.delta[b]:
			confirmed.Add(b)
		}
		s.delta[b] = d
	}
	s.rounds, s.fresh = s.rounds+1, nil
}

// maxLooseRounds is after how many rounds it is clear that nothing can be told of entries
// with another layout, because some are always under way.
const maxLooseRounds = 16

// sameLooseRounds is how often the same difference is to be seen that nobody can look
// into.
const sameLooseRounds = 4

// suspectNodes is for entries of another layout, of which only the whole can be compared.
// A difference that stays is repaired by a walk from the beginning.
func (in *intake) suspectNodes(all []compared, now time.Time) {
	c := &in.comparing
	if c.suspects == nil {
		c.suspects = make(map[string]*suspect)
	}
	c.ask = true // for another round soon
	poke(in.l.wake)
	for i := range all {
		n := &all[i]
		if n.equal {
			delete(c.suspects, n.node)
			continue
		}
		s := c.suspects[n.node]
		if s == nil {
			s = &suspect{}
			if len(c.suspects) < maxDigests {
				c.suspects[n.node] = s
			}
		}
		delta := n.sums.Loose - n.mine.Loose
		if s.same++; delta != s.loose {
			s.same = 0
		}
		s.rounds, s.loose = s.rounds+1, delta
		switch {
		case s.same >= sameLooseRounds && !now.Before(c.retry):
			c.agreed, c.divergent = false, max(1, n.sums.Live-n.mine.Live, n.mine.Live-n.sums.Live)
			in.postpone(now)
			in.rewalk = now
			in.l.r.count.repairs.Add(1)
		case s.rounds > maxLooseRounds && s.same == 0:
			in.cannotCompare("entries have another layout at the peer, and change hands all the time")
			return
		}
	}
}
