package replicate

import (
	"fmt"
	"log/slog"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// appendComparisons appends the requests for resends and for digests with buckets that are due.
// Only the requesting goroutine calls it, after appendSubscriptions: a request refers to a
// subscription that was sent before.
func (s *inboundStream) appendComparisons(out []*mapsyncv1.SubscribeRequest) []*mapsyncv1.SubscribeRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Only a map that the peer serves can be compared.
	for index, in := range s.byIndex {
		c := &in.comparison
		if in.state != StateSyncing && in.state != StateCaughtUp {
			continue
		}
		// One resend at a time: the peer accepts the next request after it has sent Resent.
		// firstPosition is read before the request is sent. All records that the peer resends are
		// therefore at or above it.
		if c.resendBuckets != nil && c.resendKey != in.m.table.DigestID() {
			c.dropBuckets()
		}
		if c.resendBuckets != nil && c.resend == nil {
			c.resend = &inboundResend{buckets: c.resendBuckets, digestKey: c.resendKey, firstPosition: in.m.head() + 1, acknowledged: in.acknowledged, lastProgress: time.Now()}
			c.resend.coverage.Reset(in.m.table)
			// A resend serves a list or a repair, never both: a list merges nothing.
			if c.list != nil && c.list.bucketsChosen {
				c.resend.list, c.list = c.list, nil
			} else {
				s.r.count.repairs.Add(1)
			}
			// endResend requests a digest with buckets once the resend has ended.
			c.resendBuckets, c.requestBuckets = nil, false
			out = append(out, &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Resend{
				Resend: &mapsyncv1.ResendRequest{Map: index, Buckets: wire.EncodeBucketSet(c.resend.buckets)},
			}})
		}
		if c.requestBuckets {
			c.requestBuckets = false
			out = append(out, &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Compare{
				Compare: &mapsyncv1.CompareRequest{Map: index},
			}})
		}
	}
	return out
}

// failStalled ends the subscription of a map whose resend has stalled: the peer accepts another
// resend request only after the current one has ended. The caller holds inboundStream.mu. The next
// subscription resumes at the position. A list that waits for the resend fails with
// errSubscriptionEnded.
func (in *inboundMap) failStalled(now time.Time) {
	err := fmt.Errorf("receive resent records of map %q: nothing for %s: %w", in.m.name, in.stream.r.opt.stallTimeout, errResendStalled)
	in.stream.r.opt.Logger.Warn("map stream from peer failed, retrying", slog.String("peer", in.stream.peer.Node),
		slog.String("map", in.m.name), slog.Any("error", err), slog.String("hint", "check the network and the load of the peer"))
	in.fail(err, now)
}

// handleResent ends a resend. It returns only errors that end the stream: the peer has sent the end
// of a resend that this node did not request. The receiving goroutine calls it, without a lock.
func (s *inboundStream) handleResent(m *mapsyncv1.Resent) error {
	var in *inboundMap
	var j *inboundResend
	err := s.withSubscription(m.GetMap(), func(found *inboundMap) error {
		if in, j = found, found.comparison.resend; j == nil {
			return fmt.Errorf("receive unrequested end of resend of map %q: %w", in.m.name, errProtocol)
		}
		j.lastProgress = time.Now()
		return nil
	})
	if in == nil || err != nil {
		return err
	}
	// The table is scanned without inboundStream.mu. A list adds the records that only this node has, a repair
	// deletes them. All records of the resend are merged or listed by now, because messages are
	// handled in order.
	if j.list != nil {
		in.listMissing(j)
	} else {
		in.sweepBuckets(j)
	}
	// The peer can send any number, so it is bounded.
	unsent := int(min(m.GetUnsent(), 1<<31))
	// The subscription may have ended during the scan.
	return s.withSubscription(m.GetMap(), func(in *inboundMap) error {
		if in.comparison.resend == j {
			j.unrepaired += max(0, unsent-in.comparison.peerUnsent) // the digest leaves out the rest
			in.endResend(j, time.Now())
		}
		return nil
	})
}

// sweepBuckets deletes the peer's records in the buckets that the peer did not resend: it no longer
// has them. Resent records stay, because the merge has moved them to firstPosition or above.
// So are the records of other owners, orphaned ones included: no node deletes a record because
// another node lacks it.
//
// The receiving goroutine calls it, without inboundStream.mu. The table is locked for
// recordsPerLock records at a time.
func (in *inboundMap) sweepBuckets(j *inboundResend) {
	n, head := in.infer(&table.Absence{Before: j.firstPosition, Acknowledged: j.acknowledged, Buckets: j.buckets, DigestID: j.digestKey}, &j.coverage)
	j.repaired, j.tableHead = j.repaired+n, head
}

// decideReplace decides for each owner of a batch whether its records are compared with this peer. It
// also decides which records of this node may be replaced by the peer's records without a newer version.
//
// The peer is authoritative for its own records, so they replace others in its name at any version.
// The fallback sender replaces an orphaned record only if version and owner are equal and the value
// differs. All other records are decided by version alone.
//
// mergeAll calls it with the lock of the table held.
func (in *inboundMap) decideReplace(owners []wire.Owner) {
	v := in.stream.r.view.Load()
	in.comparedOwners, in.replaceRules = in.comparedOwners[:0], in.replaceRules[:0]
	for _, w := range owners {
		node, replace := string(w.Node), table.ReplaceNothing
		orphaned := v.orphaned(node)
		// A repair resends the records of all owners. Only those that digests compare with this
		// peer count as repaired.
		compared := orphaned || node == in.stream.peer.Node || in.permit.requests(node)
		switch {
		case node == in.stream.peer.Node:
			replace = table.ReplaceAnyVersion
		case orphaned && in.permit.fallback:
			replace = table.ReplaceSameVersion
		}
		in.comparedOwners, in.replaceRules = append(in.comparedOwners, compared), append(in.replaceRules, replace)
	}
}
