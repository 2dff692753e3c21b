package replicate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// TestBackfillOmitsDeliveredRecords checks that a backfill does not repeat records that the stream has
// sent under a request from before the first record.
func TestBackfillOmitsDeliveredRecords(t *testing.T) {
	o := newOutboundFixture(t)
	o.expectSent("empty table", "from 0, [] end, owners sent 1")
	o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true})
	o.expectSent("orphaned records of an empty table", "owners sent 2")
	o.addRemote(table.Owner{Node: "z", Incarnation: 1}, 5, 3)
	o.addRemote(table.Owner{Node: "c", Incarnation: 9}, 5, 4)
	o.expectSent("orphaned record", "[3] end")
	o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 3, Orphaned: true, Nodes: []string{"c"}})
	o.expectSent("a live node in addition", "requested[4], owners sent 3")
}

// TestRequestForOwnRecords checks that a request for the records of the sender and the receiver, which
// the stream sends anyway, sends none again.
func TestRequestForOwnRecords(t *testing.T) {
	o := newOutboundFixture(t)
	addAllOwners(o)
	o.expectSent("first request", "from 0, [1 2 5] end, owners sent 1")
	o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 2, Nodes: []string{"b", "x"}})
	o.expectSent("sender and receiver requested", "owners sent 2")
}

// TestReportsReachStatus checks that the status of a node shows the reports of its peer.
func TestReportsReachStatus(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 2, nil)
	connectNodes(a, b)
	poll.Within(t, deadline, "a shows the report of b", func() bool {
		m, _ := a.status("b", testMap)
		return m.Reporting && !m.Report.At.IsZero()
	})
}

// contextScript is a requestScript with a context.
type contextScript struct {
	requestScript
	ctx context.Context
}

func (s *contextScript) Context() context.Context { return s.ctx }

// TestSubscribeBeforeRun checks that a peer which connects before Run gets Unavailable, so that it retries.
func TestSubscribeBeforeRun(t *testing.T) {
	r, _ := newTestReplicator(t)
	stream := &contextScript{requestScript{requests: []*mapsyncv1.SubscribeRequest{hello("x")}}, t.Context()}
	if err := (&service{r: r}).Subscribe(stream); status.Code(err) != codes.Unavailable {
		t.Errorf("subscribe: got error %v, want code %s", err, codes.Unavailable)
	}
}

// TestUnreadableRequestCodes checks that requests that gRPC cannot read count as bad requests,
// and that ends of streams do not.
func TestUnreadableRequestCodes(t *testing.T) {
	for code, want := range map[codes.Code]uint64{
		codes.ResourceExhausted: 1, codes.Internal: 1, codes.Canceled: 0, codes.Unavailable: 0,
	} {
		r, _ := newTestReplicator(t)
		r.noteUnreadable(status.Error(code, "why"), "192.0.2.1")
		if got := r.Stats().BadRequests; got != want {
			t.Errorf("%s: bad requests: got %d, want %d", code, got, want)
		}
	}
}

// TestBatchesWithoutPause checks that a stream with more to send sends it without a pause, and ends
// with the error of a later round.
func TestBatchesWithoutPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutboundFixture(t)
		const n = 3 * wire.MaxBatchDeltas
		putTable(t, o.tb, 0, n, 1)
		ended := make(chan error, 1)
		go func() { ended <- o.s.run(t.Context()) }()
		synctest.Wait() // no time passes
		if got, _ := keysIn(o.sent); len(got) != n {
			t.Errorf("records sent at once: got %d, want %d", len(got), n)
		}
		o.err = errRefusedHere
		poke(o.s.wake) // the goroutine reads o.err after this
		if err := <-ended; !errors.Is(err, errRefusedHere) {
			t.Errorf("run: got error %v, want %v", err, errRefusedHere)
		}
	})
}

// TestSetPeersForgetsDepartedPeers checks that SetPeers bounds the streams kept for nodes that have left.
func TestSetPeersForgetsDepartedPeers(t *testing.T) {
	r, _ := newTestReplicator(t)
	var peers []Peer
	for i := range maxDeparted + 10 {
		peers = append(peers, Peer{Node: fmt.Sprint("n", i), Incarnation: 1, Addr: "127.0.0.1:1"})
	}
	r.SetPeers(peers)
	if r.SetPeers(nil); len(r.inboundStreams) != maxDeparted {
		t.Errorf("streams kept: got %d, want %d", len(r.inboundStreams), maxDeparted)
	}
}

// TestAddedMapHasMembers checks that a map that is added later defends the records of live nodes
// against those of a node that was never live.
func TestAddedMapHasMembers(t *testing.T) {
	r, _ := newTestReplicator(t)
	r.SetPeers([]Peer{{Node: "c", Incarnation: 1, Addr: "127.0.0.1:1"}})
	tb := newTable(t, r.opt.Self, false)
	if err := r.AddMap("nat", Layout{KeySize: testKeySize, ValueSize: testValueSize}, tb); err != nil {
		t.Fatalf("add map: got error %v, want nil", err)
	}
	for i, c := range []struct {
		owner string
		want  table.Outcome
	}{{"c", table.Accepted}, {"y", table.Defended}} {
		tb.Update(func(tx *table.Tx) {
			d := table.Delta{Key: key(1), Value: value(i), Version: table.Version(i + 1), Owner: tx.Intern(table.Owner{Node: c.owner, Incarnation: 1})}
			if got := tx.Remote(&d, 1, table.RemoteOptions{}); got != c.want {
				t.Errorf("record of %s: got %s, want %s", c.owner, got, c.want)
			}
		})
	}
}

// TestResyncOfRemovedMap checks that Resync fails if the map is removed while it waits.
func TestResyncOfRemovedMap(t *testing.T) {
	r, _ := newRoleCluster(t, Peer{Node: "x", Incarnation: 1})
	err := r.Resync(t.Context(), testMap, func([]string, int, int) { r.RemoveMap(testMap) })
	if err == nil || !strings.Contains(err.Error(), "the map was removed") {
		t.Errorf("resync: got error %v, want one about the removed map", err)
	}
}

// TestStreamHalvesNeedValidNode checks that the halves of a stream refuse a table whose node has no
// valid name on the wire.
func TestStreamHalvesNeedValidNode(t *testing.T) {
	tb := newTable(t, table.Owner{Node: strings.Repeat("n", wire.MaxName+1), Incarnation: 1}, false)
	if _, err := NewStreamEncoder(tb, nil, 0); !errors.Is(err, ErrOptions) {
		t.Errorf("new stream encoder: got error %v, want %v", err, ErrOptions)
	}
	if _, err := NewStreamDecoder(tb, nil, target); !errors.Is(err, ErrOptions) {
		t.Errorf("new stream decoder: got error %v, want %v", err, ErrOptions)
	}
}
