package replicate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

const (
	// maxDifferences bounds a list.
	maxDifferences = 10_000
	// maxListed bounds the keys that are remembered to make one.
	maxListed = 1 << 20
	// listPatience is how long a comparison that cannot be made is waited for.
	listPatience = 5 * time.Second
)

var (
	errSubscriptionEnded = errors.New("the stream from the peer has ended")
	// ErrNoPeer is wrapped by the errors about a peer or map that there is not.
	ErrNoPeer  = errors.New("nothing to compare with")
	errBusy    = errors.New("another comparison is under way")
	errUnknown = errors.New("no comparison can be made")
	errTooBig  = errors.New("too much differs to be listed: resync the map")
	// errJobStalled is wrapped by the error of a map whose peer does not send the records of a
	// list or a repair.
	errJobStalled = errors.New("the peer stopped sending records again")
)

// Difference is one entry that this node and a peer hold differently.
type Difference struct {
	// Key is the key, as this node's map has it.
	Key []byte
	// Here and There say what either holds; nil: nothing.
	Here, There *Held
}

// Held is one side of a Difference.
type Held struct {
	// Value is the value in this node's layout; nil of a tombstone.
	Value []byte
	// Version and Owner are the record's.
	Version table.Version
	Owner   table.Owner
}

// same reports whether two sides are the same record.
func (h *Held) same(o *Held) bool {
	if h == nil || o == nil {
		return h == o
	}
	return h.Version == o.Version && h.Owner == o.Owner && (h.Value == nil) == (o.Value == nil)
}

// listing is a list of differences in the making.
type listing struct {
	done   chan struct{}
	finish sync.Once
	err    error
	exact  bool
	chosen bool // what is to be told
	// dropped says that the caller has given up while the peer sends records. The link's lock
	// guards it.
	dropped bool

	// Of the receiving goroutine until done.
	found []Difference
	seen  map[string]struct{}
	full  bool
	view  *view
}

func (l *listing) end(err error) {
	l.finish.Do(func() {
		l.err = err
		close(l.done)
	})
}

// excess returns the error of a list that would be too long, or nil.
func (l *listing) excess() error {
	if l.full {
		return errTooBig
	}
	return nil
}

// Comparison is what differs in a map between this node and a peer.
type Comparison struct {
	// Differences are the entries that differ for longer than it takes to send them, at
	// most 10,000.
	Differences []Difference
	// Passing is how many entries differed at the first look alone, or at the second:
	// changes that are under way.
	Passing int
}

// Diff returns the differences of Compare.
func (r *Replicator) Diff(ctx context.Context, name, peer string) ([]Difference, error) {
	c, err := r.Compare(ctx, name, peer)
	return c.Differences, err
}

// Compare compares a map with a live peer's, entry by entry where digests differ. It covers the
// entries that either of the two owns, and orphaned records. It takes a second if there are
// differences. Errors wrap ErrNoPeer when the peer or the map is unknown, or errUnknown when
// no comparison can be made, or are those of ctx.
func (r *Replicator) Compare(ctx context.Context, name, peer string) (c Comparison, err error) {
	first, err := r.list(ctx, name, peer)
	if err != nil {
		return c, err
	}
	if len(first.found) == 0 {
		return c, nil
	}
	// What is under way differs once.
	pause(ctx, r.opt.compare)
	second, err := r.list(ctx, name, peer)
	if err != nil {
		return c, err
	}
	was := make(map[string]*Difference, len(first.found))
	for i := range first.found {
		was[string(first.found[i].Key)] = &first.found[i]
	}
	all := len(second.found)
	c.Differences = slices.DeleteFunc(second.found, func(d Difference) bool {
		o := was[string(d.Key)]
		return o == nil || !o.Here.same(d.Here) || !o.There.same(d.There)
	})
	c.Passing = max(len(first.found), all) - len(c.Differences)
	return c, nil
}

// list makes one list.
func (r *Replicator) list(ctx context.Context, name, peer string) (*listing, error) {
	l := &listing{done: make(chan struct{}), seen: make(map[string]struct{}), view: r.view.Load()}
	r.mu.Lock()
	k := r.links[peer]
	_, live := l.view.live[peer]
	r.mu.Unlock()
	if k == nil || !live {
		return nil, fmt.Errorf("list differences with %q, which is no live peer: %w", peer, ErrNoPeer)
	}
	if err := k.wantList(name, l); err != nil {
		return nil, fmt.Errorf("list differences of map %q with %s: %w", name, peer, err)
	}
	look := time.NewTicker(listPatience)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			k.dropList(name, l)
			return nil, fmt.Errorf("list differences of map %q with %s: %w", name, peer, ctx.Err())
		case <-look.C:
			if why := k.cannotList(name, l); why != "" {
				return nil, fmt.Errorf("list differences of map %q with %s: %w: %s", name, peer, errUnknown, why)
			}
			continue
		case <-l.done:
		}
		if l.err != nil {
			return nil, fmt.Errorf("list differences of map %q with %s: %w", name, peer, l.err)
		}
		return l, nil
	}
}

// cannotList gives a list up for which no comparison can be made now, and returns the reason.
func (l *link) cannotList(name string, want *listing) string {
	l.mu.Lock()
	in := l.intakes[name]
	why := ""
	if in != nil && in.comparing.list == want && !want.chosen {
		why = in.comparing.unproven()
	}
	l.mu.Unlock()
	if why != "" {
		l.dropList(name, want)
	}
	return why
}

// wantList has a list made with the next digest.
func (l *link) wantList(name string, want *listing) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	in := l.intakes[name]
	switch {
	case in == nil:
		return fmt.Errorf("there is no such map: %w", ErrNoPeer)
	case in.state != StateSyncing && in.state != StateCaughtUp:
		return fmt.Errorf("the map is %s: %w", in.state, ErrNoPeer)
	case in.comparing.list != nil || in.comparing.lists():
		return errBusy
	}
	in.comparing.list, in.comparing.ask = want, true
	poke(l.wake)
	return nil
}

// lists reports whether the peer sends records for a list that a caller waits for.
func (c *comparing) lists() bool {
	return c.job != nil && c.job.list != nil && !c.job.list.dropped
}

// dropList abandons a list. Records that the peer still sends for it are merged; the next list
// begins after them.
func (l *link) dropList(name string, want *listing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	want.dropped = true
	if in := l.intakes[name]; in != nil && in.comparing.list == want {
		in.comparing.list = nil
		if want.chosen {
			in.comparing.want = nil
		}
	}
}

// chooseListed picks the buckets whose records are to be listed: those that differ, or all
// if buckets cannot be compared. The lock is held.
func (in *intake) chooseListed(d *digests, all []compared, exact bool) {
	c := &in.comparing
	c.list.exact = exact
	set, told := new(table.BucketSet), true
	if !exact {
		for b := range table.DigestBuckets {
			set.Add(b)
		}
	} else {
		for i := range all {
			told = told && differing(set, all[i].nodeDigest.parts, all[i].parts)
		}
		self := in.l.r.opt.Self.Node
		var mine table.Buckets
		in.m.table.View(func(tx *table.Tx) { tx.Digest(self, &mine) })
		held := new(table.Buckets) // a peer that holds nothing of this node does not say so
		for _, n := range d.nodes {
			if n.node == self {
				held = n.parts
			}
		}
		told = told && differing(set, held, &mine)
	}
	switch {
	case !told:
		c.ask = true
		poke(in.l.wake)
	case set.Len() == 0:
		c.list.end(nil)
		c.list = nil
	default:
		c.want, c.list.chosen = set, true
		poke(in.l.wake)
	}
}

// differing adds the buckets that differ, and returns false if theirs were not told.
func differing(set *table.BucketSet, theirs, mine *table.Buckets) bool {
	if theirs == nil {
		return false
	}
	for b := range theirs {
		if theirs[b] != mine[b] {
			set.Add(b)
		}
	}
	return true
}

// concerns reports whether records of an owner are compared, whichever of the two nodes
// tells the other.
func (v *view) concerns(node, peer string) bool {
	_, live := v.live[node]
	return node == peer || node == v.self.Node || !live
}

// listOne compares a record of the peer with this node's.
func (in *intake) listOne(w *wireDelta, d *table.Delta) {
	l := in.job.list
	if l.full || len(l.seen) == maxListed {
		l.full = true
		return
	}
	l.seen[string(d.Key)] = struct{}{}
	there := &Held{Version: d.Version, Owner: in.tx.Owner(d.Owner)}
	var rec table.Record
	var here *Held
	if in.tx.Get(d.Key, &rec) && rec.Version != 0 {
		here = in.held(&rec)
	}
	hereLive := here != nil && !rec.Delete
	concerns := l.view.concerns(there.Owner.Node, in.l.peer.Node) || (hereLive && l.view.concerns(here.Owner.Node, in.l.peer.Node))
	if !concerns || (d.Delete && !hereLive) {
		return
	}
	if hereLive && !d.Delete && here.Version == there.Version && here.Owner == there.Owner &&
		(!l.exact || in.m.table.Alike(rec.Value, d.Value)) {
		return
	}
	if w.operation == mapsyncv1.Operation_OPERATION_UPDATE {
		there.Value = append([]byte{}, d.Value...)
	}
	l.add(d.Key, here, there)
}

func (in *intake) held(rec *table.Record) *Held {
	h := &Held{Version: rec.Version, Owner: in.tx.Owner(rec.Owner)}
	if !rec.Delete {
		h.Value = append([]byte{}, rec.Value...)
	}
	return h
}

func (l *listing) add(key []byte, here, there *Held) {
	if len(l.found) < maxDifferences {
		l.found = append(l.found, Difference{slices.Clone(key), here, there})
	}
}

// listRest adds what the peer did not tell.
func (in *intake) listRest(j *job) {
	l := j.list
	if l.full {
		return
	}
	c := in.m.table.NewCursor(0)
	defer c.Close()
	for more := true; more; {
		in.m.table.View(func(tx *table.Tx) {
			in.tx = tx
			var rec table.Record
			for range touchChunk {
				if more = tx.Next(c, &rec) && rec.Position < j.before; !more {
					return
				}
				if rec.Delete || !j.in.Has(tx.Bucket(rec.Key)) || !l.view.concerns(tx.Owner(rec.Owner).Node, in.l.peer.Node) {
					continue
				}
				if _, told := l.seen[string(rec.Key)]; !told {
					l.add(rec.Key, in.held(&rec), nil)
				}
			}
		})
	}
	in.tx = nil
}
