package replicate

import (
	"errors"
	"fmt"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// mergeResult is the result of merging a batch.
type mergeResult struct {
	// err is why the rest of the batch was not merged; nil: all deltas were processed.
	err error
	// head is the head of the table after the merge.
	head uint64
	// accepted, refused and ahead are numbers of deltas: those that changed the table, those that the
	// table refused or that could not be converted, and those with a version too far ahead of the clock.
	accepted, refused, ahead uint64
	// outOfRange and withoutInterface are the refused deltas that could not be converted to this
	// node's layout: a number does not fit its field, or an interface does not exist.
	outOfRange, withoutInterface uint64
	// rejected is the number of records that the peer may not send, by reason.
	rejected [rejections]uint64
	// named is the number of records of other live nodes that only named the owner of an entry.
	named uint64
	// repeat reports that records were not merged that a later full sync may bring, and nothing else: records of earlier
	// incarnations of this node above the limit of the table, which no comparison requests, because peers compare this
	// node's records with those that it has; records of an incarnation that is in the future by the clock of this node; and
	// deletes that this node has filtered.
	repeat bool
}

// merge merges a batch into the table. The caller does not hold inboundStream.mu. An error ends the
// subscription of this map only.
//
// Only the receiving goroutine calls it. The table is locked once for all deltas of the batch,
// which has at most wire.MaxBatchDeltas deltas from a peer of this release. With an error, the
// result is zero.
//
// A failed merge may have merged a part of the batch. The position does not advance, so the batch
// arrives again, and merging a record twice changes nothing.
func (in *inboundMap) merge(b *wire.Batch) (mergeResult, error) {
	if err := in.checkPosition(b); err != nil {
		return mergeResult{}, err
	}
	in.result = mergeResult{head: in.tableHead}
	if b.DeltaCount > 0 {
		// The clocks are read once for each batch, before the table is locked.
		// One time for all deltas also keeps the limit of versions the same for all of them.
		in.now = in.stream.r.opt.TableTime()
		in.maxVersion = in.latestVersion(in.stream.r.opt.Now())
		// Touch moves the records to the tail of the order, so that the sweep after a full sync or
		// a repair finds the records that the peer did not send. Requested batches have no records
		// of the peer itself, so the sweep does not concern them.
		in.remoteOptions = table.RemoteOptions{Touch: (in.sweep && !b.Requested) || b.Resent, Repair: b.Resent}
		if in.remoteOptions.Touch {
			in.remoteOptions.Acknowledged, in.remoteOptions.Before = in.fullSyncAcknowledged, in.sweepBefore
			if b.Resent {
				in.remoteOptions.Acknowledged, in.remoteOptions.Before = in.resend.acknowledged, in.resend.firstPosition
			}
		}
		in.answer = &in.fullSyncCoverage
		if b.Resent {
			in.answer = &in.resend.coverage
		}
		// The peer sends time stamps by its own wall clock. The shift makes them times of this
		// node.
		in.times = in.stream.r.opt.Times().Shift(int64(in.stream.clockOffset()))
		in.m.table.Update(in.mergeFunc)
		in.tx = nil
	}
	if in.resend != nil {
		// Records that were not merged remain different. Exceptions do not count, because
		// comparisons leave them out.
		in.resend.unrepaired += int(in.result.rejected[rejectLimit] + in.result.refused + in.result.ahead - in.result.outOfRange - in.result.withoutInterface)
	}
	if in.result.err != nil {
		return mergeResult{}, fmt.Errorf("merge batch of map %q: %w", in.m.name, in.result.err)
	}
	// This batch is the end of the full sync. A broken full sync does not get here. Its repetition
	// sweeps, because sweep stays set.
	if b.CaughtUp && in.sweep {
		in.sweepUnreceived()
	}
	return in.result, nil
}

// mergeAll merges the deltas of the current batch. The caller holds the table's lock, and not
// inboundStream.mu. Other goroutines wait for the table meanwhile, the capture of events included,
// so mergeAll reads only atomic values and fields of the receiving goroutine.
func (in *inboundMap) mergeAll(tx *table.Tx) {
	b, v := &in.stream.batch, in.stream.r.view.Load()
	in.tx, in.ownerIDs, in.tableRejected = tx, in.ownerIDs[:0], tx.Rejected()
	in.stream.scratch(in.m.layout)
	// Decisions come before ids: a hostile peer could otherwise use up the ids of owners.
	in.authorise(b.Owners)
	// The table may reuse the ids of owners between batches, so each batch interns them again.
	for i := range b.Owners {
		w := &b.Owners[i]
		// The table uses the sender to decide about records of owners that were never live, and about
		// records of earlier incarnations.
		if (string(w.Node) != in.stream.peer.Node || w.Number != in.stream.peer.Incarnation) && in.remoteOptions.Sender == 0 {
			in.remoteOptions.Sender = in.senderID(tx)
		}
		in.ownerIDs = append(in.ownerIDs, in.ownerID(tx, v, i, w))
	}
	// Other batches follow versions alone, which need no rules.
	if in.remoteOptions.Touch {
		in.decideReplace(b.Owners)
	}
	// Groups let the table prefetch the records of several keys at once. An error leaves the groups
	// before it in the table.
	in.result.err = b.ForEachGroup(in.wireDeltas[:], in.groupFunc)
	in.result.head = tx.Head()
}

// ownerID returns the table's id of owner i of the batch. An owner that is not accepted uses no id, unless it names the owner of
// an unadopted entry. A live node then has one id, that of its present incarnation: a peer may name any number of others.
func (in *inboundMap) ownerID(tx *table.Tx, v *view, i int, w *wire.Owner) table.OwnerID {
	if in.decisions[i] == accepted {
		return tx.Intern(in.stream.ownerOf(w))
	}
	if p, live := v.live[string(w.Node)]; live && in.ownedByLive(i) && tx.Unadopted() {
		return tx.Intern(p.owner())
	}
	return table.NoOwner
}

// ownerOf returns the owner. Most owners are the peer itself, whose name needs no copy.
func (s *inboundStream) ownerOf(w *wire.Owner) table.Owner {
	if string(w.Node) == s.peer.Node {
		return table.Owner{Node: s.peer.Node, Incarnation: w.Number}
	}
	return w.Copy()
}

// senderID returns the table's id of the peer, or 0 if the table has no free id. The caller holds
// the table's lock. The id is valid within this batch only.
func (in *inboundMap) senderID(tx *table.Tx) table.OwnerID {
	id := tx.Intern(in.stream.peer)
	if id == table.NoOwner {
		return 0
	}
	return id
}

// mergeGroup decodes the keys of a group of deltas, prefetches them, and merges the deltas. A key
// that this node cannot hold is set aside and does not stop the group. Other errors concern the
// whole batch. The keys are valid until the next group.
func (in *inboundMap) mergeGroup(wires []wire.Delta) error {
	if in.resend != nil && in.resend.list != nil && in.resend.list.full() {
		return nil
	}
	size, n := in.m.layout.KeySize, 0
	for i := range wires {
		// The keys of the group are decoded into one buffer, back to back.
		in.keys[n] = in.stream.keys[n*size : (n+1)*size]
		known, err := in.decodeKey(&wires[i], in.keys[n])
		if err != nil {
			return err
		}
		if !known {
			continue
		}
		// A delta that was set aside leaves a gap. Later deltas move up.
		if n < i {
			wires[n] = wires[i]
		}
		n++
	}
	// Tables are larger than the processor's cache. The reads of several records overlap here.
	in.tx.Prefetch(in.keys[:n])
	for i := range wires[:n] {
		merged, err := in.mergeOne(&wires[i], in.keys[i])
		if err != nil {
			return err
		}
		if !merged {
			in.noteFiltered(&wires[i], in.keys[i])
		}
	}
	return nil
}

// decodeKey decodes the key of a delta. It returns false if the delta is not to be merged: the peer only
// names the key, or this node cannot hold the key. The error concerns the whole batch.
func (in *inboundMap) decodeKey(w *wire.Delta, key []byte) (known bool, err error) {
	err = in.decoder.Key(key, w.Key)
	switch {
	case errors.Is(err, schema.ErrMalformed):
		return false, fmt.Errorf("read key: %w", err)
	case w.Operation == mapsyncv1.Operation_OPERATION_UNSENT:
		in.noteUnsent(w, key, err == nil)
		return false, nil
	case err == nil:
		return true, nil
	case !in.setAside(w, err):
		return false, fmt.Errorf("read key: %w", err)
	}
	in.noteUndecoded(w, key)
	return false, nil
}

// mergeOne merges one delta with a decoded key. It returns false if the delta was filtered: the record of the
// peer is not in the table, and no newer one either. An error concerns the whole batch: the message is
// malformed. Everything that a valid message may contain is counted in in.result instead. The
// caller holds the table's lock.
func (in *inboundMap) mergeOne(w *wire.Delta, key []byte) (merged bool, err error) {
	d := &in.delta
	switch {
	case w.Operation < mapsyncv1.Operation_OPERATION_UPDATE || w.Operation > mapsyncv1.Operation_OPERATION_EXPIRE:
		return false, fmt.Errorf("read operation %d: %w", w.Operation, wire.ErrMalformed)
	// Version 0 marks unversioned records, which nodes do not send.
	case w.Version == 0:
		return false, fmt.Errorf("read record without a version: %w", wire.ErrMalformed)
	case int(w.Owner) >= len(in.ownerIDs):
		return false, fmt.Errorf("read owner %d of %d: %w", w.Owner, len(in.ownerIDs), wire.ErrMalformed)
	}
	// The decision was made for the owner, not for the record.
	switch why := in.decisions[w.Owner]; why {
	case accepted:
	case passedOver:
		in.coverTakeover(w, key)
		return true, nil
	case named:
		in.result.named++
		return false, nil
	default:
		in.result.rejected[why]++
		in.result.repeat = in.result.repeat || why == rejectIncarnation && in.mayBecomeValid(&in.stream.batch.Owners[w.Owner])
		return false, nil
	}
	d.Key, d.Version, d.Owner = key, table.Version(w.Version), in.ownerIDs[w.Owner]
	d.Value, d.Delete = nil, w.Operation != mapsyncv1.Operation_OPERATION_UPDATE
	d.Expired = w.Operation == mapsyncv1.Operation_OPERATION_EXPIRE
	if in.skipAhead(d) {
		return false, nil
	}
	if !d.Delete {
		// The table copies the value, so all deltas share one buffer.
		d.Value = in.stream.value[:in.m.layout.ValueSize]
		if err := in.decoder.Value(d.Value, d.Key, w.Value, &in.times); err != nil {
			if in.setAside(w, err) {
				return false, nil
			}
			return false, fmt.Errorf("read value: %w", err)
		}
		if err := in.arrayError(d); err != nil {
			in.setAside(w, err)
			return false, nil
		}
	}
	// The record fits now, or its delete has arrived.
	counted := in.exceptions.resolve(w.Key)
	// Records for a list are only compared. The stream or a repair brings them. Listing must not
	// change the table: syncd diff only shows differences.
	if in.resend != nil && in.resend.list != nil {
		in.listRecord(w, d)
		return true, nil
	}
	if in.remoteOptions.Touch {
		// The rule depends on the owner: the peer is authoritative only for some owners.
		in.remoteOptions.Replace = in.replaceRules[w.Owner]
	}
	switch in.tx.Remote(d, in.now, in.remoteOptions) {
	case table.Accepted:
		in.result.accepted++
		// Only records that are compared with this peer count as repaired.
		if in.resend != nil && in.comparedOwners[w.Owner] {
			in.resend.repaired++
		}
	// The unverified owner's record stays out, although its version is higher. See docs/replication.md,
	// Unverified owners.
	case table.Defended:
		in.result.rejected[rejectUnverifiedOwner]++
	case table.Refused:
		// The table refuses for several reasons. Its counter identifies the limit. A rejected
		// record is an exception: readiness does not wait for it, and a repair brings it once there
		// is room.
		if n := in.tx.Rejected(); n != in.tableRejected {
			in.tableRejected = n
			owner := in.tx.Owner(d.Owner)
			in.result.rejected[rejectLimit]++
			in.result.repeat = in.result.repeat || owner.Node == in.stream.r.opt.Self.Node
			in.exceptions.addAboveLimit(w.Key, d.Version, owner, counted)
		} else {
			// Another cause, such as a full table or an impossible owner, is retried with a full
			// sync.
			in.result.refused++
		}
		return false, nil
	}
	return true, nil
}

// scratch allocates space for the keys of a group and for a value. The space is used for all maps
// of the stream and only grows, so a merge allocates nothing in the steady state.
func (s *inboundStream) scratch(m Layout) {
	if n := table.PrefetchBatch * m.KeySize; len(s.keys) < n {
		s.keys = make([]byte, n)
	}
	if len(s.value) < m.ValueSize {
		s.value = make([]byte, m.ValueSize)
	}
}
