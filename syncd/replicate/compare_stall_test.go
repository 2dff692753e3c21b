package replicate

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// beginJob requests some records again, for a list unless that is nil.
func (x *receiver) beginJob(l *listing) {
	x.t.Helper()
	if l != nil {
		if err := x.l.wantList(testMap, l); err != nil {
			x.t.Fatal(err)
		}
		l.chosen = true // as chooseListed
	}
	x.in.comparing.want = new(table.BucketSet)
	if x.l.comparisons(nil); x.in.comparing.job == nil || x.in.comparing.job.list != l {
		x.t.Fatalf("job %+v", x.in.comparing.job)
	}
}

// retold is the end of a job.
func (x *receiver) retold() *mapsyncv1.SubscribeResponse {
	return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Retold{Retold: &mapsyncv1.Retold{Map: x.in.index}}}
}

// TestListNeverEnded: a list that the caller has given up while the peer sends its records does not block the
// next list, which begins after the end of those records.
func TestListNeverEnded(t *testing.T) {
	x := newStreamless(t)
	first, second := newListing(x), newListing(x)
	x.beginJob(first)
	if err := x.l.wantList(testMap, second); !errors.Is(err, errBusy) {
		t.Errorf("while a caller waits: %v", err)
	}
	x.l.dropList(testMap, first)
	if err := x.l.wantList(testMap, second); err != nil {
		t.Fatalf("after the caller has given up: %v", err)
	}
	x.take(x.outOfTurn(1))
	if len(live(x.tb)) != 0 {
		t.Error("a list that was given up changes the table")
	}
	x.take(x.retold())
	if c := &x.in.comparing; c.job != nil || c.list != second || ended(second) {
		t.Errorf("after the end: job %v, list %p", c.job, c.list)
	}
	x.mustCompare(time.Now(), true)
	if !ended(second) || second.err != nil {
		t.Errorf("the second list: ended %t, %v", ended(second), second.err)
	}
}

// TestJobsThatStall: a list or a repair of which the peer sends nothing for 10 s ends the subscription, and a
// later one resumes. Late records of it are ignored.
func TestJobsThatStall(t *testing.T) {
	for name, listed := range map[string]bool{"list": true, "repair": false} {
		synctest.Test(t, func(t *testing.T) {
			x := newStreamless(t)
			x.take(stockBatch(x.in.index, 0, 10, 1, 2))
			var l, next *listing
			if listed {
				l, next = newListing(x), newListing(x)
			}
			x.beginJob(l)
			late, end, stall := x.outOfTurn(3), x.retold(), x.r.opt.stall
			if listed {
				x.l.dropList(testMap, l)
				if err := x.l.wantList(testMap, next); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(stall)
			if got := x.asked(time.Now()); len(got) != 0 {
				t.Fatalf("%s: after %s: %q", name, stall, got)
			}
			time.Sleep(time.Nanosecond)
			if got := x.asked(time.Now()); !slices.Equal(got, []string{"unsubscribe 1"}) || x.in.state != StateFailed || !errors.Is(x.in.err, errJobStalled) {
				t.Fatalf("%s: %q, %s: %v", name, got, x.in.state, x.in.err)
			}
			if listed && (!ended(l) || !ended(next)) {
				t.Errorf("%s: ended %t, the next %t", name, ended(l), ended(next))
			}
			for _, m := range []*mapsyncv1.SubscribeResponse{late, end} {
				if err := x.l.take(mustMarshal(t, m)); err != nil || len(live(x.tb)) != 2 {
					t.Errorf("%s: late: %v, %v", name, err, live(x.tb))
				}
			}
			time.Sleep(x.r.opt.MinBackoff)
			if sub := x.subscribe(1, false); sub.GetMap() != 2 || sub.GetResume().GetPosition() != 10 || x.in.comparing.job != nil {
				t.Errorf("%s: %v", name, sub)
			}
		})
	}
}

// TestJobsThatMoveOn: the records of a job, other records that the peer has to send first, and the end of the
// job push its deadline on. Changes that a peer sends as they come do not.
func TestJobsThatMoveOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := func(x *receiver) *mapsyncv1.SubscribeResponse {
			return stockBatch(x.in.index, x.in.position, x.in.position+10, 5)
		}
		for name, c := range map[string]struct {
			batch func(x *receiver) *mapsyncv1.SubscribeResponse
			want  int
		}{
			"nothing": {nil, 1},
			"changes": {full, 1},
			"records": {func(x *receiver) *mapsyncv1.SubscribeResponse { return x.outOfTurn(3) }, 0},
			"more to send": {func(x *receiver) *mapsyncv1.SubscribeResponse {
				m := full(x)
				m.GetBatch().CaughtUp = false
				return m
			}, 0},
			"the end": {(*receiver).retold, 0},
		} {
			x := newStreamless(t)
			x.beginJob(nil)
			time.Sleep(x.r.opt.stall)
			if c.batch != nil {
				x.take(c.batch(x))
			}
			time.Sleep(time.Nanosecond)
			if got := x.asked(time.Now()); len(got) != c.want {
				t.Errorf("%s: %q", name, got)
			}
		}
	})
}
