package replicate

import (
	"strings"
	"testing"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

func TestLyingSenders(t *testing.T) {
	good := func() *mapsyncv1.Batch { return stockBatch(1, 0, 10, 1).GetBatch() }
	r, tb := newReceiver(t)
	for want, lie := range map[string]func(*mapsyncv1.Batch){
		"read key: ":              func(b *mapsyncv1.Batch) { b.Deltas[0].Key = wireBytes(append(key(1), 1)) },
		"read value: ":            func(b *mapsyncv1.Batch) { b.Deltas[0].Value = []byte{0x0a, 1, 0} },
		"without a version":       func(b *mapsyncv1.Batch) { b.Deltas[0].Version = 0 },
		"owner 1 of 1":            func(b *mapsyncv1.Batch) { b.Deltas[0].Owner = 1 },
		"operation 9":             func(b *mapsyncv1.Batch) { b.Deltas[0].Operation = 9 },
		"gap in the changes":      func(b *mapsyncv1.Batch) { b.PreviousPosition = 1 },
		"node name of 0 bytes":    func(b *mapsyncv1.Batch) { b.Owners[0].Node = "" },
		"node name of 256 bytes":  func(b *mapsyncv1.Batch) { b.Owners[0].Node = strings.Repeat("x", 256) },
		"unknown subscription 2":  func(b *mapsyncv1.Batch) { b.Map = 2 },
		"receive batch of \"z\"":  func(b *mapsyncv1.Batch) { b.Origin.Node = "z" },
		"receive batch of \"\"":   func(b *mapsyncv1.Batch) { b.Origin = nil },
		"receive batch of \"x\" ": func(b *mapsyncv1.Batch) { b.Origin.Number = 2 },
	} {
		l, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
		b := good()
		lie(b)
		data := mustMarshal(t, &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Batch{Batch: b}})
		err := l.take(data)
		if err == nil {
			err = in.err
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, got: %v", want, err)
		}
		if in.position != 0 || len(live(tb)) != 0 {
			t.Errorf("%s: taken in nevertheless", want)
		}
	}
}

// TestGap has a server that leaves out a batch, once.
func TestGap(t *testing.T) {
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
	eventually(t, "received without the gap", func() bool { return len(live(b.tb)) == 3 })
	if p := <-resumed; p != 10 {
		t.Errorf("resumed at %d, expected 10", p)
	}
	if s := b.r.Stats(); s.Gaps != 1 || s.BadMessages != 1 || s.ConnectErrors != 0 {
		t.Errorf("gap not counted, or more than that: %+v", s)
	}
}
