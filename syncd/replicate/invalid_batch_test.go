package replicate

import (
	"errors"
	"strings"
	"testing"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
)

// TestInvalidBatches handles invalid batches. The keys of the table are parts of the errors.
func TestInvalidBatches(t *testing.T) {
	good := func() *mapsyncv1.Batch { return stockBatch(1, 0, 10, 1).GetBatch() }
	r, tb := newTestReplicator(t)
	for want, corrupt := range map[string]func(*mapsyncv1.Batch){
		"read key: ":              func(b *mapsyncv1.Batch) { b.Deltas[0].Key = wireBytes(append(key(1), 1)) },
		"read value: ":            func(b *mapsyncv1.Batch) { b.Deltas[0].Value = []byte{0x0a, 1, 0} },
		"without a version":       func(b *mapsyncv1.Batch) { b.Deltas[0].Version = 0 },
		"owner 1 of 1":            func(b *mapsyncv1.Batch) { b.Deltas[0].Owner = 1 },
		"operation 9":             func(b *mapsyncv1.Batch) { b.Deltas[0].Operation = 9 },
		"gap in the changes":      func(b *mapsyncv1.Batch) { b.PreviousPosition = 1 },
		`node name "" of 0 bytes`: func(b *mapsyncv1.Batch) { b.Owners[0].Node = "" },
		"of 256 bytes: malformed": func(b *mapsyncv1.Batch) { b.Owners[0].Node = strings.Repeat("x", 256) },
		"unknown subscription 2":  func(b *mapsyncv1.Batch) { b.Map = 2 },
		"65 owners of 1 deltas": func(b *mapsyncv1.Batch) {
			for range maxSpareOwners {
				b.Owners = append(b.Owners, b.Owners[0])
			}
		},
		"receive batch of \"z\"":  func(b *mapsyncv1.Batch) { b.Origin.Node = "z" },
		"receive batch of \"\"":   func(b *mapsyncv1.Batch) { b.Origin = nil },
		"receive batch of \"x\" ": func(b *mapsyncv1.Batch) { b.Origin.Number = 2 },
	} {
		s, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
		b := good()
		corrupt(b)
		data := mustMarshal(t, &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Batch{Batch: b}})
		err := s.handle(data)
		if err == nil {
			err = in.err
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("handle batch: want error %q, got: %v", want, err)
		}
		if in.position != 0 || len(live(tb)) != 0 {
			t.Errorf("%s: batch: got merged, want refused", want)
		}
	}
}

// TestBatchGap has a server leave out one batch.
func TestBatchGap(t *testing.T) {
	resumed := make(chan uint64, 1)
	peer := startStock(t, func(stream mapsyncv1.ReplicationService_SubscribeServer) error {
		if err := welcome(stream); err != nil {
			return err
		}
		sub, err := accept(stream)
		if err != nil {
			return err
		}
		for _, b := range []*mapsyncv1.SubscribeResponse{
			stockBatch(sub.GetMap(), 0, 10, 1), stockBatch(sub.GetMap(), 20, 30, 3),
		} {
			if err := stream.Send(b); err != nil {
				return err
			}
		}
		if sub, err = accept(stream); err != nil {
			return err
		}
		resumed <- sub.GetResume().GetPosition()
		if err := stream.Send(stockBatch(sub.GetMap(), 10, 30, 2, 3)); err != nil {
			return err
		}
		<-stream.Context().Done()
		return nil
	})
	b := startNode(t, "b", 2, nil)
	b.r.SetPeers([]Peer{peer})
	poll.Within(t, deadline, "the records were received without a gap", func() bool { return len(live(b.tb)) == 3 })
	if p := <-resumed; p != 10 {
		t.Errorf("resume: got position %d, want 10", p)
	}
	if s := b.r.Stats(); s.Gaps != 1 || s.BadMessages != 1 || s.ConnectErrors != 0 {
		t.Errorf("counters: got %+v, want one gap", s)
	}
}

// TestMessagesOffTheFastPath checks that a batch next to an unknown field is merged, and that a message
// that does not parse is an error.
func TestMessagesOffTheFastPath(t *testing.T) {
	x := newInboundFixture(t)
	b := mustMarshal(t, stockBatch(x.in.index, 0, 10, 1))
	if err := x.stream.handle(append(b, 0xfa, 1, 0)); err != nil || live(x.tb)[1] != 1 {
		t.Errorf("batch with an unknown field: got error %v, value %d, want nil and 1", err, live(x.tb)[1])
	}
	if err := x.stream.handle([]byte{0xff}); !errors.Is(err, wire.ErrMalformed) {
		t.Errorf("invalid message: got %v, want ErrMalformed", err)
	}
}
