package replicate

import (
	"fmt"
	"log/slog"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
)

// start serves the map if possible. It sends the peer the result, unless the last answer was the
// same.
//
// m is the present map of that name, nil if there is none. step calls it in each round until it
// succeeds. A map with another schema or access is another localMap, which is tried even after a
// refusal. The error is that of Send.
func (out *outboundMap) start(m *localMap, now time.Time) error {
	// The map does not exist on this node yet. The subscription stays pending until it does.
	if m == nil {
		if out.answer == answerPending {
			return nil
		}
		out.answer, out.refusedMap = answerPending, nil
		out.sharedAnswer.Store(out.answer)
		return out.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Pending{
			Pending: &mapsyncv1.MapPending{Map: out.index},
		}})
	}
	// The peer has the refusal already.
	if out.refusedMap == m {
		return nil
	}
	if !out.allowScan(m, now) {
		return nil // the next round tries again
	}
	// The peer's name is authenticated, so read-from is enforced here and not by the peer.
	if !m.access.reads(out.s.target.Node) {
		return out.refuse(m, fmt.Errorf("%w: read-from of %s does not have %q", errDenied, out.s.r.opt.Self.Node, out.s.target.Node))
	}
	if err := out.checkSchema(m); err != nil {
		return out.refuse(m, err)
	}
	return out.serve(m)
}

// checkSchema returns an error if the peer's map cannot hold what the schema of m describes. The
// peer makes the same check. This node repeats it so that its status and log show the reason. An
// observer needs no schema: it decodes entries by the schema of this node.
func (out *outboundMap) checkSchema(m *localMap) error {
	if out.observe {
		return nil
	}
	peerSchema, err := wire.SchemaFromProto(out.name, out.peerSchema)
	if err != nil {
		return err
	}
	_, err = schema.NewDecoder(m.layout.Schema, peerSchema, m.layout.Links)
	return err
}

// refuse sends the peer a refusal with the reason. It stores the map, so that the same map is
// refused once only. The subscription stays.
func (out *outboundMap) refuse(m *localMap, err error) error {
	out.answer, out.refusedMap = answerRefused, m
	out.sharedAnswer.Store(out.answer)
	out.s.r.count.mapsRefused.Add(1)
	out.s.r.opt.Logger.Warn("map does not fit that of peer, not sending it", slog.String("peer", out.s.target.Node),
		slog.String("map", out.name), slog.Any("error", err), slog.String("hint", hintLayout))
	return out.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Refused{
		Refused: &mapsyncv1.MapRefused{
			Map: out.index, Reason: mapsyncv1.RefusalReason_REFUSAL_REASON_LAYOUT, Layout: m.layout.proto(),
			Text: fmt.Sprintf("map %q of %s does not fit that of %s: %v", out.name, out.s.r.opt.Self.Node, out.s.target.Node, err),
		},
	}})
}

// end ends the subscription and sends the peer the reason. The peer may subscribe again with
// another number.
func (out *outboundMap) end(reason mapsyncv1.EndReason) error {
	out.s.removeMap(out)
	return out.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Ended{
		Ended: &mapsyncv1.MapEnded{Map: out.index, Reason: reason},
	}})
}
