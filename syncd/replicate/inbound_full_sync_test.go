package replicate

import (
	"errors"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// endMap has the peer end the subscription, and the pause after it pass.
func (x *inboundFixture) endMap() {
	x.t.Helper()
	x.handle(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Ended{Ended: &mapsyncv1.MapEnded{Map: x.in.index}}})
	x.in.retryAt = time.Time{}
}

// TestFullSyncEndsBeforeItIsRepeated checks that a full sync that takes longer than the pause before the next one is not broken.
func TestFullSyncEndsBeforeItIsRepeated(t *testing.T) {
	x := newInboundFixture(t)
	m := stockBatch(x.in.index, 0, 10, 1)
	m.GetBatch().CaughtUp = false
	m.GetBatch().Deltas[0].Version = uint64(time.Now().Add(2 * x.r.opt.MaxClockAhead).UnixNano())
	for _, end := range []bool{false, true} {
		if m.GetBatch().CaughtUp = end; x.stream.handle(mustMarshal(t, m)) != nil || x.in.repeatFullSyncAt.IsZero() {
			t.Fatal("record too far ahead: got an error or no further full sync, want one")
		}
		requests := x.stream.appendSubscriptions(nil, x.r.localMaps(), x.in.repeatFullSyncAt.Add(time.Second))
		if repeated := len(requests) > 0; repeated != end {
			t.Errorf("full sync has ended %t: repeated: got %t, want %t", end, repeated, end)
		}
		m.GetBatch().PreviousPosition, m.GetBatch().Position = 10, 20
	}
}

// TestRepeatedSweepsAreLimited has a peer end each subscription after a full sync. The pause before the next one grows, although
// each full sync brings a batch, and the number of full syncs is limited, also if new gRPC streams begin without a pause.
func TestRepeatedSweepsAreLimited(t *testing.T) {
	x := newInboundFixture(t)
	x.handle(stockBatch(x.in.index, 0, 10, 1))
	for range scanBurst {
		x.endMap()
		x.subscribe(1, true)
		x.handle(stockBatch(x.in.index, 0, 10, 1))
	}
	if want := min(x.r.opt.MinBackoff<<(scanBurst-1), maxSubscribePause); x.in.backoff != want {
		t.Errorf("pause: got %s, want %s", x.in.backoff, want)
	}
	x.stream.markDown(errors.New("broken"))
	for after, requests := range map[time.Duration]int{0: 0, x.r.opt.digestInterval: 1} {
		x.in.index = 0
		if got := x.stream.appendSubscriptions(nil, x.r.localMaps(), time.Now().Add(after)); len(got) != requests {
			t.Errorf("after %s: got requests %v, want %d", after, got, requests)
		}
	}
	// A subscription that has worked for some time ends the growth.
	x.in.acceptedAt = time.Now().Add(-2 * maxSubscribePause)
	x.in.handleMerged(&wire.Batch{Position: 10}, mergeResult{}, time.Now())
	if x.in.backoff != 0 {
		t.Errorf("pause after a subscription that has worked: got %s, want 0", x.in.backoff)
	}
}

// TestAcknowledgedOfMapsThatAreNotDue checks that an acknowledged position is not used for a request that becomes due later: the
// peer may have filtered records since.
func TestAcknowledgedOfMapsThatAreNotDue(t *testing.T) {
	x := newInboundFixture(t)
	sender := newOutboundStream(x.r, x.stream.peer, nil)
	out := newOutboundMap(sender, &mapsyncv1.MapSubscription{Map: 1, Name: testMap}, allOrphaned)
	out.serving.Store(true)
	out.ackedPosition.Store(10)
	sender.maps = []*outboundMap{out}
	x.r.outboundStreams[sender] = struct{}{}
	for _, step := range []struct {
		due  *table.BucketSet
		want uint64
	}{{table.AllBuckets(), 10}, {nil, 0}} {
		x.in.comparison.resendBuckets = step.due
		if x.stream.noteAcknowledged(); x.in.acknowledged != step.want {
			t.Errorf("acknowledged position, due %t: got %d, want %d", step.due != nil, x.in.acknowledged, step.want)
		}
	}
}
