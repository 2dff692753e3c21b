package replicate

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// beginResend requests a resend of some records, for a list unless l is nil.
func (x *inboundFixture) beginResend(l *diffList) {
	x.t.Helper()
	if l != nil {
		if err := x.stream.requestDiffList(testMap, l); err != nil {
			x.t.Fatalf("request list: got error %v, want nil", err)
		}
		l.bucketsChosen = true // as in chooseListBuckets
	}
	x.in.comparison.chooseBuckets(new(table.BucketSet), x.tb.DigestID())
	if x.stream.appendComparisons(nil); x.in.comparison.resend == nil || x.in.comparison.resend.list != l {
		x.t.Fatalf("request a resend: got %+v, want a resend with list %p", x.in.comparison.resend, l)
	}
}

// resentMessage returns the message that ends a resend.
func (x *inboundFixture) resentMessage() *mapsyncv1.SubscribeResponse {
	return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Resent{Resent: &mapsyncv1.Resent{Map: x.in.index}}}
}

// TestAbandonedDiffListDoesNotBlockNext checks that a list which the caller abandons during its
// resend does not block the next list. That list begins after the end of the resend.
func TestAbandonedDiffListDoesNotBlockNext(t *testing.T) {
	x := newInboundFixture(t)
	first, second := newTestList(x), newTestList(x)
	x.beginResend(first)
	if err := x.stream.requestDiffList(testMap, second); !errors.Is(err, errBusy) {
		t.Errorf("second list while a caller waits: got %v, want errBusy", err)
	}
	x.stream.abandonDiffList(testMap, first)
	if err := x.stream.requestDiffList(testMap, second); err != nil {
		t.Fatalf("second list after the first was abandoned: got %v, want no error", err)
	}
	x.handle(x.resentBatch(1))
	if len(live(x.tb)) != 0 {
		t.Error("abandoned list: got a change of the table, want none")
	}
	x.handle(x.resentMessage())
	if c := &x.in.comparison; c.resend != nil || c.list != second || listEnded(second) {
		t.Errorf("end of the resend: got resend %v, list %p, want no resend, and list %p not ended", c.resend, c.list, second)
	}
	x.mustCompare(time.Now(), true)
	if !listEnded(second) || second.err != nil {
		t.Errorf("second list: ended %t, %v, want true and no error", listEnded(second), second.err)
	}
}

// TestStalledResendEndsSubscription checks that the subscription ends if a peer sends nothing of a
// resend for 10 s, and that the next one resumes. Late records of the resend are ignored.
func TestStalledResendEndsSubscription(t *testing.T) {
	for name, listed := range map[string]bool{"list": true, "repair": false} {
		synctest.Test(t, func(t *testing.T) {
			x := newInboundFixture(t)
			x.handle(stockBatch(x.in.index, 0, 10, 1, 2))
			var l, next *diffList
			if listed {
				l, next = newTestList(x), newTestList(x)
			}
			x.beginResend(l)
			late, end, stall := x.resentBatch(3), x.resentMessage(), x.r.opt.stallTimeout
			if listed {
				x.stream.abandonDiffList(testMap, l)
				if err := x.stream.requestDiffList(testMap, next); err != nil {
					t.Fatalf("request list: got error %v, want nil", err)
				}
			}
			time.Sleep(stall)
			if got := x.requestKinds(time.Now()); len(got) != 0 {
				t.Fatalf("%s: requests after %s: got %q, want none", name, stall, got)
			}
			time.Sleep(time.Nanosecond)
			if got := x.requestKinds(time.Now()); !slices.Equal(got, []string{"unsubscribe 1"}) || x.in.state != StateFailed || !errors.Is(x.in.err, errResendStalled) {
				t.Fatalf("%s: requests: got %q, state %s: %v, want unsubscribe 1, state %s and errResendStalled",
					name, got, x.in.state, x.in.err, StateFailed)
			}
			if listed && (!listEnded(l) || !listEnded(next)) {
				t.Errorf("%s: list ended %t, next list ended %t, want true and true", name, listEnded(l), listEnded(next))
			}
			for _, m := range []*mapsyncv1.SubscribeResponse{late, end} {
				if err := x.stream.handle(mustMarshal(t, m)); err != nil || len(live(x.tb)) != 2 {
					t.Errorf("%s: late message: got %v, live records %v, want no error and two live records", name, err, live(x.tb))
				}
			}
			time.Sleep(x.r.opt.MinBackoff)
			if sub := x.subscribe(1, false); sub.GetMap() != 2 || sub.GetResume().GetPosition() != 10 || x.in.comparison.resend != nil {
				t.Errorf("%s: new subscription: got %v, want map 2, a resume from position 10, and no resend", name, sub)
			}
		})
	}
}

// TestResendProgressExtendsDeadline checks that the records of a resend, records that the peer has
// to send before, and the end of the resend extend its deadline. Changes that the peer sends in
// turn do not.
func TestResendProgressExtendsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := func(x *inboundFixture) *mapsyncv1.SubscribeResponse {
			return stockBatch(x.in.index, x.in.position, x.in.position+10, 5)
		}
		for name, c := range map[string]struct {
			batch func(x *inboundFixture) *mapsyncv1.SubscribeResponse
			want  int
		}{
			"nothing": {nil, 1},
			"changes": {full, 1},
			"records": {func(x *inboundFixture) *mapsyncv1.SubscribeResponse { return x.resentBatch(3) }, 0},
			"records to send before": {func(x *inboundFixture) *mapsyncv1.SubscribeResponse {
				m := full(x)
				m.GetBatch().CaughtUp = false
				return m
			}, 0},
			"end of the resend": {(*inboundFixture).resentMessage, 0},
		} {
			x := newInboundFixture(t)
			x.beginResend(nil)
			time.Sleep(x.r.opt.stallTimeout)
			if c.batch != nil {
				x.handle(c.batch(x))
			}
			time.Sleep(time.Nanosecond)
			if got := x.requestKinds(time.Now()); len(got) != c.want {
				t.Errorf("%s: requests: got %q, want %d", name, got, c.want)
			}
		}
	})
}

// TestSweepOfRepairExtendsDeadline checks that the end of a resend extends its deadline before the table
// is scanned, which may take longer than the deadline.
func TestSweepOfRepairExtendsDeadline(t *testing.T) {
	x := newInboundFixture(t)
	x.beginResend(nil)
	j := x.in.comparison.resend
	j.lastProgress = time.Time{}
	done := make(chan error, 1)
	x.tb.View(func(*table.Tx) { // holds the lock that the scan needs
		go func() { done <- x.stream.handleResent(&mapsyncv1.Resent{Map: x.in.index}) }()
		poll.Within(t, deadline, "the end of the resend counts as progress", func() bool {
			x.stream.mu.Lock()
			defer x.stream.mu.Unlock()
			return !j.lastProgress.IsZero()
		})
	})
	if err := <-done; err != nil || x.in.comparison.resend != nil {
		t.Errorf("end of the resend: got error %v, resend %v, want none", err, x.in.comparison.resend)
	}
}
