package replicate

import (
	"fmt"
	"log/slog"
	"strings"

	"mapsync/syncd/replicate/wire"
)

// rejection is the reason for which syncd does not accept a record from a peer.
type rejection uint8

const (
	accepted rejection = iota
	// rejectUnrequested: another live node owns the record, and this node did not request the
	// record from the peer.
	rejectUnrequested
	// rejectOwner: the setting write-from of the map does not list the owner.
	rejectOwner
	// rejectIncarnation: the incarnation of the owner is higher than that of the live node with the
	// same name, or further in the future than MaxClockAhead allows.
	rejectIncarnation
	// rejectLimit: the table holds its maximum number of records, and the owner has used up its share.
	rejectLimit
	// rejectUnverifiedOwner: the owner was never live, and the record would replace a record of a live
	// node. See unverified_owners.go of package table.
	rejectUnverifiedOwner
	rejections
	// passedOver: another live node owns the record, which is part of the answer to a resend request. That
	// node sends it. The record proves that the peer has the key, and changes nothing. It does not count as rejected.
	passedOver
	// named: another live node owns the record, which is part of a full sync for unadopted entries. Every peer sends such
	// records. The record shows whose entry this is. It does not count as rejected.
	named
)

var rejectionNames = [rejections]string{"", "unrequested", "write_from", "incarnation", "limit", "unverified_owner"}

// authorise decides for each owner in a batch whether syncd accepts its records from the peer. No
// other code makes this decision. Accepted are:
//
//   - the records of the peer itself, of its incarnation or an earlier one;
//   - the records of earlier incarnations of this node, about which the table decides: see mergeOwn;
//   - orphaned records, if this node requested them from the peer (see permit), or in an answer: the
//     records that the peer sends again at the request of this node, or because of unadopted entries;
//   - records of other live nodes, if this node requested them from the peer because it receives nothing
//     from their owner.
//
// A member can always cause an answer, by digests that differ, and each member is asked for all records at a start. An
// answer therefore permits no record of another live node: that node has a stream and a comparison of its own. While this
// node has unadopted entries, such a record shows whose entry it is: see noteOwner.
//
// In all cases the owner must be allowed to write the map.
//
// mergeAll calls it with the table's lock held. The decisions are valid for one batch, because
// membership and permits change.
func (in *inboundMap) authorise(owners []wire.Owner) {
	v, b := in.stream.r.view.Load(), &in.stream.batch
	// handleBatch refuses resent batches that this node did not request.
	resent := in.resend != nil && b.Resent
	all := in.permit != nil && in.permit.all && in.tx.Unadopted()
	in.decisions = in.decisions[:0]
	for i := range owners {
		d := in.decide(v, &owners[i], resent || all)
		switch {
		case d == rejectUnrequested && all && !resent:
			d = named
		case d == rejectUnrequested && resent && in.listing():
			d = accepted // it is only compared
		case d == rejectUnrequested && resent:
			d = passedOver
		}
		in.decisions = append(in.decisions, d)
	}
}

// decide returns the decision for one owner. An impossible incarnation and write-from are decisive
// in answers, too.
func (in *inboundMap) decide(v *view, w *wire.Owner, answer bool) rejection {
	o := in.stream.ownerOf(w)
	switch {
	case o.Node == in.stream.peer.Node && o.Incarnation > in.stream.peer.Incarnation,
		o.Node == v.self.Node && o.Incarnation > v.self.Incarnation,
		// Peers cannot repair such a record: the node does not own it either.
		o.Incarnation > in.stream.r.latestIncarnation():
		return rejectIncarnation
	case o.Node != v.self.Node && !in.m.access.writes(o.Node):
		return rejectOwner
	case in.permit == nil || in.permit.allows(v, o.Node, answer):
		return accepted
	}
	return rejectUnrequested
}

// mayBecomeValid reports whether an owner with rejectIncarnation is accepted once the clock of this node is right. The
// incarnations of this node and of the peer do not change while the stream is up.
func (in *inboundMap) mayBecomeValid(w *wire.Owner) bool {
	node := string(w.Node)
	return w.Number > in.stream.r.latestIncarnation() && node != in.stream.peer.Node && node != in.stream.r.opt.Self.Node
}

// noteRejected counts and logs the rejected records of a batch. The caller holds inboundStream.mu.
// Rejections do not end the stream: a peer whose membership is older sends such records without a
// fault of its own.
func (in *inboundMap) noteRejected(res *mergeResult) {
	total := uint64(0)
	// Rejections because of the limit have a log line of their own.
	for why, n := range res.rejected {
		in.stream.r.count.rejected[why].Add(n)
		if rejection(why) != rejectLimit {
			total += n
		}
	}
	// The next owner request asks for these records again if their owner has left by then.
	if res.rejected[rejectUnrequested]+res.named > 0 {
		in.owners.rejectedUnrequested = true
	}
	if res.rejected[rejectLimit] > 0 && !in.limitLogged {
		in.limitLogged = true
		in.stream.r.opt.Logger.Warn("records rejected, table is at max-records-factor",
			slog.String("peer", in.stream.peer.Node), slog.String("map", in.m.name),
			slog.String("hint", "raise max-records-factor or the size of the map, or find out why the peer has so many records"))
	}
	if total > 0 {
		in.stream.r.opt.Logger.Warn("records rejected, peer is not permitted to send them",
			slog.String("peer", in.stream.peer.Node), slog.String("map", in.m.name), slog.String("text", reasonsOf(res)), slog.String("problem", "records-rejected"),
			slog.String("hint", "normal for a moment while nodes join or leave; else the peer's write-from differs from this node's, or the peer is hostile"))
	}
}

// reasonsOf returns the reasons and numbers of rejected records as text. The reasons are in the
// order of their constants.
func reasonsOf(res *mergeResult) string {
	var reasons []string
	for why, n := range res.rejected {
		if n > 0 {
			reasons = append(reasons, fmt.Sprintf("%s %d", rejectionNames[why], n))
		}
	}
	return strings.Join(reasons, ", ")
}

// Rejected returns the number of records that were not accepted from peers, by reason.
func (r *Replicator) Rejected() map[string]uint64 {
	counts := make(map[string]uint64)
	for why := range r.count.rejected {
		if rejection(why) != accepted {
			counts[rejectionNames[why]] = r.count.rejected[why].Load()
		}
	}
	return counts
}
