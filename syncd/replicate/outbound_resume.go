package replicate

import (
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// serve starts the stream: at the position of the peer's resume if that is still valid in the
// table's order, else at position 0.
//
// The caller is the sending goroutine and holds no lock. The error is that of Send. The peer gets
// MapAccepted before the first batch.
func (f *outboundMap) serve(m *localMap) error {
	// A position is valid only for the same incarnation, the same map, and between floor and head.
	// Below the floor, the peer may have missed deletes that the table has forgotten.
	position, reset := f.resume.GetPosition(), false
	var head, floor uint64
	m.table.View(func(tx *table.Tx) { head, floor = tx.Head(), tx.Floor() })
	if f.resume.GetIncarnation() != f.s.r.opt.Self.Incarnation || f.resume.GetGeneration() != m.generation ||
		position > head || position < floor {
		position, reset = 0, true
		f.s.r.count.fullSyncs.Add(1)
	} else {
		// The table still has all tombstones after the position, so the receiver misses no delete.
		f.s.r.count.resumes.Add(1)
	}
	f.m, f.startPosition, f.sent = m, position, f.s.r.sentTo(f.s.target.Node, f.name)
	f.restoreDeliveries(reset)
	f.enc = m.newEncoder(f.s.r.opt.Self, wire.EncoderOptions{Index: f.index, Expiries: f.expiries, Observe: f.observe})
	f.cursor = m.table.NewCursor(position)
	f.cancelWake = m.table.Subscribe(f.s.wake)
	f.sentPosition.Store(position)
	f.serving.Store(true)
	return f.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Accepted{
		Accepted: &mapsyncv1.MapAccepted{
			Map: f.index, Generation: m.generation, Position: position, Reset_: reset, Schema: m.wireSchema,
		},
	}})
}
