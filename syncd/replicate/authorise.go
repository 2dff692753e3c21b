package replicate

import (
	"fmt"
	"log/slog"
	"strings"
)

// rejection is why a record is not accepted from a peer.
type rejection uint8

const (
	accepted rejection = iota
	// rejectUnrequested: another live node owns the record, and this node did not
	// request it of the peer.
	rejectUnrequested
	// rejectOwner: write-from does not have the owner.
	rejectOwner
	// rejectIncarnation: its owner is a later incarnation than the node that is live under
	// that name, or starts in the future.
	rejectIncarnation
	// rejectLimit: the table holds as many records as it may, and more than the owner's share
	// of the owner.
	rejectLimit
	// rejectStranger: its owner was never live, and a live node owns the record that it would
	// replace. See table's strangers.go.
	rejectStranger
	rejections
)

var rejectionNames = [rejections]string{"", "unrequested", "write_from", "incarnation", "limit", "stranger"}

// authorise decides whose records of a batch are accepted from the peer. It is the one
// place for that:
//
//   - the peer's own, of its incarnation or an earlier one;
//   - what an earlier incarnation of this node owned;
//   - orphaned ones, and those of other live nodes, as this node requested them of the
//     peer (see permit), or in a repair that this node requested;
//   - and all of that only of owners that may write the map.
func (in *intake) authorise(owners []wireOwner) {
	v, b := in.l.r.view.Load(), &in.l.batch
	repair := in.job != nil && b.retold
	in.verdicts = in.verdicts[:0]
	for i := range owners {
		in.verdicts = append(in.verdicts, in.verdict(v, &owners[i], repair))
	}
}

func (in *intake) verdict(v *view, w *wireOwner, repair bool) rejection {
	o := w.owner()
	switch {
	case o.Node == in.l.peer.Node && o.Incarnation > in.l.peer.Incarnation,
		o.Node == v.self.Node && o.Incarnation > v.self.Incarnation,
		// No node could repair such a record: that node does not own it either.
		o.Incarnation > in.l.r.latestIncarnation():
		return rejectIncarnation
	case o.Node != v.self.Node && !in.m.access.writes(o.Node):
		return rejectOwner
	case repair || in.permit == nil || in.permit.allows(v, o.Node):
		return accepted
	}
	return rejectUnrequested
}

// noteRejected counts and logs the rejected records of a batch. The link's lock is held.
func (in *intake) noteRejected(res *merged) {
	total := uint64(0)
	for why, n := range res.rejected {
		in.l.r.count.rejected[why].Add(n)
		if rejection(why) != rejectLimit {
			total += n
		}
	}
	if res.rejected[rejectUnrequested] > 0 {
		in.requesting.withheld = true
	}
	if res.rejected[rejectLimit] > 0 && !in.limitLogged {
		in.limitLogged = true
		in.l.r.opt.Logger.Warn("records rejected: the table holds as many as it may",
			slog.String("peer", in.l.peer.Node), slog.String("map", in.m.name),
			slog.String("hint", "raise max-records-factor or the size of the map, or find out why the peer has so many records"))
	}
	if total > 0 {
		in.l.r.opt.Logger.Warn("records rejected: the peer may not send them",
			slog.String("peer", in.l.peer.Node), slog.String("map", in.m.name), slog.String("reasons", reasonsOf(res)),
			slog.String("hint", "normal for a moment while nodes join or leave; else the peer's write-from differs from this node's, or the peer is hostile"))
	}
}

func reasonsOf(res *merged) string {
	var reasons []string
	for why, n := range res.rejected {
		if n > 0 {
			reasons = append(reasons, fmt.Sprintf("%s %d", rejectionNames[why], n))
		}
	}
	return strings.Join(reasons, ", ")
}

// Rejected returns the records that were not accepted from peers, by reason.
func (r *Replicator) Rejected() map[string]uint64 {
	counts := make(map[string]uint64)
	for why := range r.count.rejected {
		if rejection(why) != accepted {
			counts[rejectionNames[why]] = r.count.rejected[why].Load()
		}
	}
	return counts
}

// withheld reports whether this node does not send a map to a peer: the peer may not
// read it, or it does not accept this node's records where the settings agree.
func (m *localMap) withheld(self, peer string) bool {
	return !m.access.reads(peer) || !m.access.writes(self)
}

// excluded reports whether a node's records of a map are not accepted at all.
func (m *localMap) excluded(node string) bool { return !m.access.writes(node) }
