package replicate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"mapsync/syncd/table"
)

const (
	// maxDifferences bounds the differences in a list.
	maxDifferences = 10_000
	// listTimeout is the maximum wait for a comparison that cannot be made at present.
	listTimeout = 5 * time.Second
)

var (
	// errSubscriptionEnded ends a list whose subscription has ended.
	errSubscriptionEnded = errors.New("the stream from the peer has ended")
	// ErrNotFound is wrapped by the errors about an unknown peer or map.
	ErrNotFound = errors.New("no such peer or map")
	// errBusy is returned while another caller waits for a list of the same map and peer.
	errBusy = errors.New("another comparison is under way")
	// errNoComparison is wrapped by the error of a list whose comparison stays impossible.
	errNoComparison = errors.New("no comparison can be made")
	// errResendStalled is wrapped by the error of a map whose peer stops sending the records of a
	// list or a repair.
	errResendStalled = errors.New("the peer stopped resending records")
)

// Difference is one entry that this node and a peer hold in different versions, or that only one
// holds. At least one of Here and There is not nil. The caller owns all of its memory.
type Difference struct {
	// Key is the key in the layout of this node's map.
	Key []byte
	// Here is the record of this node and There the record of the peer; nil: no record.
	Here, There *DiffSide
}

// DiffSide is one side of a Difference.
type DiffSide struct {
	// Value is the value in this node's layout; nil for a tombstone.
	Value []byte
	// Version is that of the record.
	Version table.Version
	// Owner is that of the record. Two sides with one Version and one Owner are the same record.
	Owner table.Owner
}

// equal reports whether two sides have the same version, owner and kind. Values are not compared:
// version and owner identify the record. nil equals nil only.
func (h *DiffSide) equal(o *DiffSide) bool {
	if h == nil || o == nil {
		return h == o
	}
	return h.Version == o.Version && h.Owner == o.Owner && (h.Value == nil) == (o.Value == nil)
}

// diffList is a list of differences that is being built.
//
// It passes three states. It first waits for a digest with buckets as inboundComparison.list, and
// then for its place among resends with bucketsChosen set. Finally it collects records as
// inboundResend.list. end completes it in any of these states.
type diffList struct {
	// done is closed once when the list is complete or has failed.
	done chan struct{}
	// endOnce guards done and err: the first call of end counts.
	endOnce sync.Once
	// err is why the list has failed; nil: it is complete. It is written before done is closed, and read afterwards only.
	err error
	// exact reports whether values are compared, too. It is false if the layouts of the nodes
	// differ: then only versions and owners are compared. chooseListBuckets sets it.
	exact bool
	// bucketsChosen reports that the list covers a fixed set of buckets, which were requested or
	// will be requested next. inboundStream.mu guards it.
	bucketsChosen bool
	// abandoned reports that the caller has given up while the peer sends records.
	// inboundStream.mu guards it.
	abandoned bool

	// The receiving goroutine owns the fields below until done is closed.

	// differences are the differences found, at most maxDifferences.
	differences []Difference
	// received are the live records of this node whose keys the peer has sent.
	received table.RecordSet
	// view is the membership when the list was requested. It does not change.
	view *view
}

// end completes the list. Only the first call has an effect. An error means that differences is
// incomplete. It may be called by any goroutine.
func (l *diffList) end(err error) {
	l.endOnce.Do(func() {
		l.err = err
		close(l.done)
	})
}

// Comparison is the result of comparing a map with a peer.
type Comparison struct {
	// Differences are the entries that differ for longer than sending them takes, at most 10,000.
	Differences []Difference
	// InFlight is the number of entries that differed in only one of the two comparisons: changes
	// that are in flight.
	InFlight int
}

// Diff returns the differences that Compare finds. The errors are those of Compare.
func (r *Replicator) Diff(ctx context.Context, name, peer string) ([]Difference, error) {
	c, err := r.Compare(ctx, name, peer)
	return c.Differences, err
}

// Compare compares a map with that of a live peer, entry by entry where the digests differ. It
// covers entries owned by either of the two nodes, and orphaned records. If there are differences,
// it compares again after 1 s. The errors wrap ErrNotFound if the peer or the map is unknown, wrap
// errNoComparison if no comparison can be made, or are those of ctx.
//
// It changes no table. One caller at a time can compare a map with a peer, others get an error. If
// the layouts are equal, the peer sends only the records of the buckets that differ.
func (r *Replicator) Compare(ctx context.Context, name, peer string) (c Comparison, err error) {
	first, err := r.buildDiffList(ctx, name, peer)
	if err != nil {
		return c, err
	}
	// Without a difference, a second list could only find newer changes in flight.
	if len(first.differences) == 0 {
		return c, nil
	}
	// A second list after an interval separates differences from changes in flight: these differ in only
	// one of the two lists.
	pause(ctx, r.opt.digestInterval)
	second, err := r.buildDiffList(ctx, name, peer)
	if err != nil {
		return c, err
	}
	// A difference counts if both lists contain it with the same records on both sides.
	was := make(map[string]*Difference, len(first.differences))
	for i := range first.differences {
		was[string(first.differences[i].Key)] = &first.differences[i]
	}
	all := len(second.differences)
	c.Differences = slices.DeleteFunc(second.differences, func(d Difference) bool {
		o := was[string(d.Key)]
		// An entry that has changed between the two lists is in flight.
		return o == nil || !o.Here.equal(d.Here) || !o.There.equal(d.There)
	})
	c.InFlight = max(len(first.differences), all) - len(c.Differences)
	return c, nil
}

// buildDiffList requests one list and waits until it is complete. The list is complete when its
// error is nil. No lock is held while it waits.
func (r *Replicator) buildDiffList(ctx context.Context, name, peer string) (*diffList, error) {
	l := &diffList{done: make(chan struct{}), view: r.view.Load()}
	r.mu.Lock()
	k := r.inboundStreams[peer]
	_, live := l.view.live[peer]
	r.mu.Unlock()
	if k == nil || !live {
		return nil, fmt.Errorf("list differences with %q, no live peer of that name: %w", peer, ErrNotFound)
	}
	if err := k.requestDiffList(name, l); err != nil {
		return nil, fmt.Errorf("list differences of map %q with %s: %w", name, peer, err)
	}
	// The ticker detects a comparison that stays impossible. A slow resend is not interrupted.
	look := time.NewTicker(listTimeout)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			k.abandonDiffList(name, l)
			// The peer may still be sending records. mergeOne does not merge them.
			return nil, fmt.Errorf("list differences of map %q with %s: %w", name, peer, ctx.Err())
		case <-look.C:
			if why := k.abandonInconclusiveList(name, l); why != "" {
				return nil, fmt.Errorf("list differences of map %q with %s: %w: %s", name, peer, errNoComparison, why)
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

// abandonInconclusiveList abandons a list if no comparison can be made at present. It returns the
// reason, or an empty string. buildDiffList calls it once in listTimeout, so that a command does
// not wait for nodes that will not agree on the membership soon. It takes inboundStream.mu.
func (s *inboundStream) abandonInconclusiveList(name string, want *diffList) string {
	s.mu.Lock()
	in := s.maps[name]
	why := ""
	// A list with chosen buckets has passed its comparison.
	if in != nil && in.comparison.list == want && !want.bucketsChosen {
		why = in.comparison.incomparableReason()
	}
	s.mu.Unlock()
	if why != "" {
		s.abandonDiffList(name, want)
	}
	return why
}

// requestDiffList requests that the next digest of the peer starts a list. The errors wrap
// ErrNotFound if the peer does not serve the map, or are errBusy. It takes inboundStream.mu.
func (s *inboundStream) requestDiffList(name string, want *diffList) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.maps[name]
	switch {
	case in == nil:
		return fmt.Errorf("unknown map: %w", ErrNotFound)
	case in.state != StateSyncing && in.state != StateCaughtUp:
		return fmt.Errorf("the map is %s: %w", in.state, ErrNotFound)
	case in.comparison.list != nil || in.comparison.hasList():
		return errBusy
	}
	in.comparison.list, in.comparison.requestBuckets = want, true
	poke(s.wake)
	return nil
}

// hasList reports whether the peer is sending records for a list that a caller waits for. The
// caller holds inboundStream.mu.
func (c *inboundComparison) hasList() bool {
	return c.resend != nil && c.resend.list != nil && !c.resend.list.abandoned
}

// abandonDiffList abandons a list. Records that the peer still sends for it are compared and
// discarded. The next list starts after them. It takes inboundStream.mu.
func (s *inboundStream) abandonDiffList(name string, want *diffList) {
	s.mu.Lock()
	defer s.mu.Unlock()
	want.abandoned = true
	if in := s.maps[name]; in != nil && in.comparison.list == want {
		in.comparison.list = nil
		// The buckets were not requested yet.
		if want.bucketsChosen {
			in.comparison.resendBuckets = nil
		}
	}
}
