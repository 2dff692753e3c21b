package replicate

import (
	"fmt"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// protoHandover returns the wire format of a handover, nil for none.
func protoHandover(h table.Handover) *mapsyncv1.Handover {
	if h == (table.Handover{}) {
		return nil
	}
	return &mapsyncv1.Handover{Incarnation: h.Incarnation, Version: uint64(h.Version)}
}

// noteHandover notes whether this node has begun or ended a handover since the peer has received the last one. The
// caller holds the table's lock.
func (out *outboundMap) noteHandover(tx *table.Tx) {
	if h := tx.Handover(out.s.r.opt.Self.Node); h != out.handover {
		out.handover, out.handoverDue = h, true
	}
}

// sendHandover sends a changed handover. The error ends the stream.
func (out *outboundMap) sendHandover() error {
	due := out.handoverDue
	out.handoverDue = false
	if !due {
		return nil
	}
	return out.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Handover{
		Handover: &mapsyncv1.MapHandover{Map: out.index, Handover: protoHandover(out.handover)},
	}})
}

// handleHandover is setHandover for a change. It looks at all owners of the table with the table locked, so more changes than
// scanLimit allows end the stream: a drain takes longer. The caller holds inboundStream.mu.
func (in *inboundMap) handleHandover(p *mapsyncv1.Handover, now time.Time) error {
	if !in.m.handovers.allow(in.stream.peer.Node, now, in.stream.r.opt.digestInterval) {
		return fmt.Errorf("receive too many changes of the handover of map %q: %w", in.m.name, errProtocol)
	}
	return in.setHandover(p)
}

// setHandover stores what the peer has handed over. The name of the peer is authenticated, so no node announces the
// handover of another one, and a relay announces none. An error wraps errProtocol and ends the stream. The caller holds
// inboundStream.mu. It takes the table's lock.
func (in *inboundMap) setHandover(p *mapsyncv1.Handover) error {
	peer := in.stream.peer
	h := table.Handover{Incarnation: p.GetIncarnation(), Version: table.Version(p.GetVersion())}
	if h.Incarnation > peer.Incarnation || (h.Incarnation == 0 && h.Version != 0) {
		return fmt.Errorf("receive handover of incarnation %d from incarnation %d for map %q: %w", h.Incarnation, peer.Incarnation, in.m.name, errProtocol)
	}
	in.m.table.Update(func(tx *table.Tx) { tx.SetHandover(peer.Node, h) })
	return nil
}

// withdrawHandovers forgets what the peer has handed over when its stream ends: the drain may end without a message. It
// does nothing if another incarnation of the peer has taken the place of the stream. A planned end keeps it, because the
// next stream follows at once.
func (s *inboundStream) withdrawHandovers() {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if s.r.inboundStreams[s.peer.Node] != s {
		return
	}
	for _, m := range s.r.localMaps() {
		m.table.Update(func(tx *table.Tx) { tx.SetHandover(s.peer.Node, table.Handover{}) })
	}
}
