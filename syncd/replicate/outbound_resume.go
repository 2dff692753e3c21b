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
func (out *outboundMap) serve(m *localMap) error {
	// A position is valid only for the same incarnation, the same map, and between floor and head.
	// Below the floor, the peer may have missed deletes that the table has forgotten.
	position, reset := out.resume.GetPosition(), false
	var head, floor uint64
	m.table.View(func(tx *table.Tx) {
		head, floor, out.handover = tx.Head(), tx.Floor(), tx.Handover(out.s.r.opt.Self.Node)
	})
	if out.resume.GetIncarnation() != out.s.r.opt.Self.Incarnation || out.resume.GetGeneration() != m.generation ||
		position > head || position < floor {
		position, reset = 0, true
		out.s.r.count.fullSyncs.Add(1)
	} else {
		// The table still has all tombstones after the position, so the receiver misses no delete.
		out.s.r.count.resumes.Add(1)
	}
	out.m, out.startPosition, out.sent = m, position, out.s.r.sentTo(out.s.target.Node, out.name)
	out.restoreDeliveries(reset)
	out.enc = m.newEncoder(out.s.r.opt.Self, wire.EncoderOptions{Index: out.index, Observe: out.observe})
	out.cursor = m.table.NewCursor(position)
	out.cancelWake = m.table.Subscribe(out.s.wake)
	out.sentPosition.Store(position)
	out.serving.Store(true)
	return out.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Accepted{
		Accepted: &mapsyncv1.MapAccepted{
			Map: out.index, Generation: m.generation, Position: position, Reset_: reset, Schema: m.wireSchema,
			Handover: protoHandover(out.handover),
		},
	}})
}
