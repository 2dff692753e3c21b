package replicate

import (
	"strconv"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

func TestScanLimit(t *testing.T) {
	const interval = time.Second
	var l scanLimit
	now := time.Now()
	burst := func(peer string) (n int) {
		for range 10 * scanBurst {
			if l.allow(peer, now, interval) {
				n++
			}
		}
		return n
	}
	for _, c := range []struct {
		after time.Duration
		peer  string
		want  int
	}{
		{0, "a", scanBurst},
		{0, "b", scanBurst}, // each peer has its own limit
		{interval - 1, "a", 0},
		{1, "a", 1},
		{3 * interval, "a", 3},
		{time.Hour, "a", scanBurst},
		{-time.Hour, "a", 0}, // the clock was set back
		{time.Hour + interval, "a", 1},
	} {
		if now = now.Add(c.after); burst(c.peer) != c.want {
			t.Errorf("peer %s after %s: got another number of scans, want %d", c.peer, c.after, c.want)
		}
	}
	for i := range 3 * maxRememberedPeers {
		l.allow(strconv.Itoa(i), now, interval)
	}
	if n := len(l.usedUpTo); n > maxRememberedPeers {
		t.Errorf("stored peers: got %d, want at most %d", n, maxRememberedPeers)
	}
	// A scan of a stored peer forgets no other peer. A scan of a new peer forgets one if the list is full.
	clear(l.usedUpTo)
	for i := range maxRememberedPeers {
		l.allow(strconv.Itoa(i), now, interval)
	}
	for _, c := range []struct {
		peer string
		want int
	}{{"0", maxRememberedPeers}, {"one more", 1}} {
		if l.allow(c.peer, now, interval); len(l.usedUpTo) != c.want {
			t.Errorf("stored peers after a scan of peer %s: got %d, want %d", c.peer, len(l.usedUpTo), c.want)
		}
	}
}

// A peer makes requests that scan the table and find no record to send, as fast as it can. Subscriptions,
// requests for owners and resends count together, also over several streams. Each request is answered in
// the end.
func TestScansOnRequestAreLimited(t *testing.T) {
	requests := map[string]func(o *outboundFixture, n int){
		"subscriptions": func(o *outboundFixture, _ int) {
			now := o.now
			o.subscribe()
			o.now = now
		},
		"owner requests": func(o *outboundFixture, n int) {
			if err := o.s.handleOwnerRequest(&mapsyncv1.OwnerRequest{Map: 1, Serial: uint64(n + 2), Resend: true, Nodes: []string{"unknown"}}); err != nil {
				o.t.Fatalf("handle owner request: got error %v, want nil", err)
			}
		},
		"resends": func(o *outboundFixture, _ int) {
			if o.m.comparison.resendRequest.Load() != nil {
				return // not answered yet
			}
			if err := o.s.handleResendRequest(&mapsyncv1.ResendRequest{Map: 1, Buckets: wire.EncodeBucketSet(new(table.BucketSet))}); err != nil {
				o.t.Fatalf("handle resend request: got error %v, want nil", err)
			}
		},
	}
	for name, request := range requests {
		t.Run(name, func(t *testing.T) {
			o := newOutboundFixture(t)
			o.tb.Update(func(tx *table.Tx) { tx.Adopt(1) })
			o.addRemote(table.Owner{Node: "c", Incarnation: 9}, 5, 1, 2, 3)
			o.sendPending()
			sent := 0
			scans := func() (n int) {
				for range 5 * scanBurst {
					request(o, sent)
					sent++
					for _, m := range o.sendPending() {
						if m.GetAccepted() != nil || m.GetOwnersSent() != nil || m.GetResent() != nil {
							n++
						}
					}
				}
				return n
			}
			first := scans()
			if first > 2*scanBurst {
				t.Errorf("answers at one moment: got %d, want at most %d", first, 2*scanBurst)
			}
			if again := scans(); again > 0 {
				t.Errorf("answers after the limit: got %d, want 0", again)
			}
			o.now = o.now.Add(2 * o.r.opt.digestInterval)
			if len(o.sendPending()) == 0 {
				t.Error("answers after two intervals: got none, want the last request answered")
			}
		})
	}
}
