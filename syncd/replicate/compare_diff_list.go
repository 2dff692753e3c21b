package replicate

import (
	"slices"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// chooseListBuckets chooses the buckets whose records the peer resends for the list: those that
// differ, or all if buckets are not comparable. The caller holds inboundStream.mu.
//
// Without differences it completes the list at once. If the digest came without buckets, the list
// waits for another one.
func (in *inboundMap) chooseListBuckets(d *wire.Digests, all []nodeComparison, exact bool) {
	c := &in.comparison
	c.list.exact = exact
	set, complete := new(table.BucketSet), true
	// Sums of values in different layouts do not compare, so all buckets are listed.
	if !exact {
		for b := range table.DigestBuckets {
			set.Add(b)
		}
	} else {
		for i := range all {
			complete = complete && addDivergentBuckets(set, all[i].NodeDigest.Buckets, all[i].localBuckets)
		}
		// The records of this node are compared, too. The peer sends their digest only together
		// with buckets.
		self := in.stream.r.opt.Self.Node
		var localBuckets table.Buckets
		in.m.table.View(func(tx *table.Tx) { tx.Digest(self, &localBuckets) })
		// Zero sums are those of no records.
		peerBuckets := new(table.Buckets) // a peer without records of this node sends no digest of them
		for _, n := range d.Nodes {
			if n.Node == self {
				peerBuckets = n.Buckets
			}
		}
		complete = complete && addDivergentBuckets(set, peerBuckets, &localBuckets)
	}
	switch {
	case !complete:
		// Request buckets and try again with the next digest.
		c.requestBuckets = true
		poke(in.stream.wake)
	case set.Len() == 0:
		c.list.end(nil)
		c.list = nil
	default:
		// appendComparisons requests the resend.
		c.chooseBuckets(set, d.Key)
		c.list.bucketsChosen = true
		poke(in.stream.wake)
	}
}

// addDivergentBuckets adds the buckets that differ to set. It returns false if the peer sent no
// buckets. It reads both and changes only set.
func addDivergentBuckets(set *table.BucketSet, theirs, mine *table.Buckets) bool {
	if theirs == nil {
		return false
	}
	for b := range theirs {
		if theirs[b] != mine[b] {
			set.Add(b)
		}
	}
	return true
}

// compares reports whether this node and a peer compare the records of an owner. They do so for
// their own records, in both directions, and for orphaned records. Records of a third live node are
// compared with that node alone, because they may be in flight from there.
func (v *view) compares(node, peer string) bool {
	_, live := v.live[node]
	return node == peer || node == v.self.Node || !live
}

// listRecord compares a record of the peer with that of this node, and lists a difference. It does
// not change the table. The caller is a merge and holds the table's lock. d is copied, because the
// next delta uses its buffers.
func (in *inboundMap) listRecord(w *wire.Delta, d *table.Delta) {
	l := in.resend.list
	var rec table.Record
	here := in.tx.Get(d.Key, &rec) && rec.Version != 0
	// A tombstone here counts as no record: tombstones are forgotten at different times.
	hereLive := here && !rec.Delete
	if hereLive {
		l.received.Add(rec.Ref) // listMissing needs equal records, too
	}
	// Both nodes hold the same record.
	if hereLive && !d.Delete && rec.Version == d.Version && rec.Owner == d.Owner &&
		(!l.exact || in.m.table.EqualCompared(d.Key, rec.Value, d.Value)) {
		return
	}
	there := &DiffSide{Version: d.Version, Owner: in.tx.Owner(d.Owner)}
	// Records of third nodes do not belong to the list.
	concerns := l.view.compares(there.Owner.Node, in.stream.peer.Node) || (hereLive && l.view.compares(in.tx.Owner(rec.Owner).Node, in.stream.peer.Node))
	if !concerns || (d.Delete && !hereLive) {
		return
	}
	var side *DiffSide
	if here {
		side = in.diffSide(&rec)
	}
	if w.Operation == mapsyncv1.Operation_OPERATION_UPDATE {
		there.Value = append([]byte{}, d.Value...)
	}
	l.add(d.Key, side, there)
}

// diffSide returns a side of a difference with copies of the record's bytes. The caller holds the
// table's lock.
func (in *inboundMap) diffSide(rec *table.Record) *DiffSide {
	h := &DiffSide{Version: rec.Version, Owner: in.tx.Owner(rec.Owner)}
	if !rec.Delete {
		h.Value = append([]byte{}, rec.Value...)
	}
	return h
}

// full reports whether the list has maxDifferences. Further differences are dropped.
func (l *diffList) full() bool { return len(l.differences) == maxDifferences }

// add adds a difference unless the list is full.
func (l *diffList) add(key []byte, here, there *DiffSide) {
	if !l.full() {
		l.differences = append(l.differences, Difference{slices.Clone(key), here, there})
	}
}

// listMissing lists the live records of this node in the requested buckets that the peer did not
// send. The receiving goroutine calls it after the last record of the resend, without
// inboundStream.mu. The table is locked for recordsPerLock records at a time.
func (in *inboundMap) listMissing(j *inboundResend) {
	l := j.list
	c := in.m.table.NewCursor(0)
	defer c.Close()
	for more := true; more && !l.full(); {
		in.m.table.View(func(tx *table.Tx) {
			in.tx = tx
			var rec table.Record
			// Records at or above firstPosition arrived after the request, so the peer may have
			// sent them. They may count as received, too.
			for range recordsPerLock {
				if more = tx.Next(c, &rec) && rec.Position < j.firstPosition; !more {
					return
				}
				if rec.Delete || l.received.Has(rec.Ref) || !j.buckets.Has(tx.Bucket(rec.Key)) || !l.view.compares(tx.Owner(rec.Owner).Node, in.stream.peer.Node) {
					continue
				}
				l.add(rec.Key, in.diffSide(&rec), nil)
			}
		})
	}
	in.tx = nil
}
