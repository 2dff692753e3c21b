package replicate

import (
	"errors"
	"math"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// A full sync and the answer to a resend request contain all records that the peer owns, or those of some
// buckets. A record of the peer that they lack no longer exists at the peer, unless a node has filtered
// it on the way. This file is the only place in which a node concludes a delete from a peer's silence. See
// docs/replication.md, Absence.

// noteFiltered notes that the record of a key was not merged, although the peer has it. The caller holds the
// table's lock. The record of the peer that this node holds then stays after the answer. An entry that this node has found
// in its map at start is not a new one. If the record is one of this node's own, the kernel map may never hold its
// entry.
func (in *inboundMap) noteFiltered(w *wire.Delta, key []byte) {
	if in.listing() {
		return
	}
	if in.remoteOptions.Touch {
		in.tx.Cover(key, in.stream.peer.Node, math.MaxUint64)
	}
	in.noteOwner(w, key, true)
}

// coverTakeover keeps the peer's record of a key that another live node has taken over, until that node sends its own
// record. A delete or an expiry shows that the peer's record is superseded, and an older record that the peer has lost its own.
func (in *inboundMap) coverTakeover(w *wire.Delta, key []byte) {
	in.noteOwner(w, key, true)
	if hasRecord(w) && in.remoteOptions.Touch && !in.listing() {
		in.tx.Cover(key, in.stream.peer.Node, table.Version(w.Version))
	}
}

// noteUnsent notes a key that the peer has named. exact reports that the key could be decoded.
func (in *inboundMap) noteUnsent(w *wire.Delta, key []byte, exact bool) {
	// The peer leaves an interface out of the key, which then is another key.
	if exact && !in.namesInKey {
		in.noteFiltered(w, key)
	} else {
		in.noteUndecoded(w, key)
	}
}

// hasRecord reports whether the peer has a live record of the key.
func hasRecord(w *wire.Delta) bool {
	return w.Operation == mapsyncv1.Operation_OPERATION_UPDATE || w.Operation == mapsyncv1.Operation_OPERATION_UNSENT
}

// noteUndecoded is noteFiltered for a key that cannot be decoded: an interface does not exist here, or the peer has
// left a field out. buf has the size of a key.
func (in *inboundMap) noteUndecoded(w *wire.Delta, buf []byte) {
	if in.decoder.ComparedKey(buf, w.Key) != nil {
		in.noteOtherLayout(w)
		return // a number in the key does not fit, so no record here can have the key
	}
	if in.listing() {
		return
	}
	if in.remoteOptions.Touch {
		in.answer.Add(buf)
	}
	in.noteOwner(w, buf, false)
}

// noteOtherLayout notes a key that no entry of this node can have, if it is of a record of this node.
func (in *inboundMap) noteOtherLayout(w *wire.Delta) {
	if int(w.Owner) < len(in.ownerIDs) && hasRecord(w) && string(in.stream.batch.Owners[w.Owner].Node) == in.stream.r.opt.Self.Node {
		in.tx.NoteOtherLayout()
	}
}

// listing reports whether the batch belongs to a list of differences, which changes nothing.
func (in *inboundMap) listing() bool { return in.resend != nil && in.resend.list != nil }

// ownedByLive reports whether the records of an owner are not merged because the owner is another live node, which
// sends them itself.
func (in *inboundMap) ownedByLive(owner int) bool {
	d := in.decisions[owner]
	return d == rejectUnrequested || d == passedOver || d == named
}

// noteOwner notes the owner of a filtered record. A tombstone counts, too, if its owner is a live node: that node
// decides about the entry. Only the compared bits of the key count unless exact is set.
func (in *inboundMap) noteOwner(w *wire.Delta, key []byte, exact bool) {
	if int(w.Owner) >= len(in.ownerIDs) {
		return
	}
	if !hasRecord(w) && !in.ownedByLive(int(w.Owner)) {
		if in.decisions[w.Owner] == accepted && !in.stream.batch.Resent {
			in.unheld.Store(true) // the peer keeps its tombstone for the repeated full sync
			in.result.repeat = true
		}
		return
	}
	// An owner that is not accepted has no id.
	switch id := in.ownerIDs[w.Owner]; {
	case string(in.stream.batch.Owners[w.Owner].Node) == in.stream.r.opt.Self.Node:
		in.tx.NoteUnheld(key, table.Version(w.Version))
		in.lacksOwn.Store(true)
		in.result.repeat = in.result.repeat || in.tx.UnheldOverflow() // see forgetUnheldOverflow
		// The sender does not have a record that it has only named as merged here.
		if w.Operation == mapsyncv1.Operation_OPERATION_UPDATE {
			in.unheld.Store(true)
		}
	// The owner may lack the record that another node has restored. It names the key until it has decided.
	case in.tx.IsRestored(table.Version(w.Version)) &&
		(w.Operation == mapsyncv1.Operation_OPERATION_UNSENT || string(in.stream.batch.Owners[w.Owner].Node) != in.stream.peer.Node):
	case id != table.NoOwner:
		in.tx.NoteOwner(key, id, exact)
		in.noteSuperseded(w, key, exact)
	}
}

// noteSuperseded notes that a live peer has the filtered record of a key. A record of this node, or of one that has left, is then
// older. A third node proves that only if this node has requested the peer's records from it.
// A key that is not exact counts only if the peer itself has sent it.
func (in *inboundMap) noteSuperseded(w *wire.Delta, key []byte, exact bool) {
	owner, live := in.stream.r.view.Load().live[string(in.stream.batch.Owners[w.Owner].Node)]
	switch {
	case !live || in.decisions[w.Owner] != accepted:
	case exact:
		in.tx.NoteSuperseded(key, table.Version(w.Version), owner.owner())
	case owner.Node == in.stream.peer.Node:
		in.tx.NoteUndecoded(key, in.stream.peer, in.exceptions.syncNumber)
	}
}

// endFullSync notes that the peer has sent all records of a full sync. The caller holds inboundStream.mu.
func (in *inboundMap) endFullSync() {
	if in.fullSyncOpen {
		in.fullSyncOpen = false
		in.m.table.Update(func(tx *table.Tx) { tx.EndFullSync(in.stream.peer, in.exceptions.syncNumber) })
	}
}

// infer deletes the peer's records that an answer lacks and that are not covered. It sets the fields Peer,
// Covered and Unfit of a. It returns the number of deleted records, and the head of the table.
//
// The receiving goroutine calls it, without inboundStream.mu. The table is locked for recordsPerLock
// records at a time.
func (in *inboundMap) infer(a *table.Absence, filtered *table.Coverage) (deleted int, head uint64) {
	a.Peer = in.stream.peer
	own := in.newOwnEncoding()
	a.Covered = func(key, value []byte) bool { return filtered.Has(key) || !own.sends(key, value) }
	a.Unfit = func(key, value []byte) bool { return !own.peerCanHold(key, value) }
	c := in.m.table.NewCursor(0)
	defer c.Close()
	now := in.stream.r.opt.TableTime()
	for more := true; more; {
		in.m.table.Update(func(tx *table.Tx) {
			var n int
			n, more = tx.Sweep(a, now, c, recordsPerLock)
			deleted, head = deleted+n, tx.Head()
		})
	}
	return deleted, head
}

// ownEncoding converts entries of this node to the layout of the peer. It belongs to one goroutine.
type ownEncoding struct {
	encoder *schema.Encoder
	// same reports that both layouts are equal. decoder then is nil. Without a decoder for another layout,
	// no entry can be converted.
	same    bool
	decoder *schema.Decoder
	times   schema.Times
	// wire, key and value are scratch space. key and value have the sizes of the peer's layout.
	wire, key, value []byte
}

// newOwnEncoding returns the conversion for the present schema of the peer.
func (in *inboundMap) newOwnEncoding() *ownEncoding {
	e := &ownEncoding{encoder: in.m.schemaEncoder, same: in.decoder.Same(), times: in.stream.r.opt.Times()}
	if e.same {
		return e
	}
	// The error means that the peer's map cannot hold all entries of this node. The peer refuses the map then.
	e.decoder, _ = schema.NewDecoder(in.m.layout.Schema, in.peerSchema, in.m.layout.Links)
	e.key, e.value = make([]byte, in.peerSchema.Key.Size), make([]byte, in.peerSchema.Value.Size)
	return e
}

// sends reports whether this node can send an entry to the peer. A key with an interface that has no name here may be any key of
// the peer. The peer may lack a record of its earlier incarnation that this node cannot send.
func (e *ownEncoding) sends(key, value []byte) bool {
	var err error
	if e.wire, err = e.encoder.AppendKey(e.wire[:0], key); err != nil {
		return false
	}
	e.wire, err = e.encoder.AppendNamedValue(e.wire[:0], key, value, &e.times)
	return err == nil && (e.same || e.decoder != nil)
}

// peerCanHold reports whether the peer's map can hold an entry that this node can send. A peer with a new layout has dropped
// the entries that do not fit.
func (e *ownEncoding) peerCanHold(key, value []byte) bool {
	if e.same {
		return true
	}
	e.wire = e.encoder.AppendKnownKey(e.wire[:0], key)
	if e.decoder.ComparedKey(e.key, e.wire) != nil {
		return false
	}
	e.wire = e.encoder.AppendValue(e.wire[:0], key, value, &e.times)
	return !errors.Is(e.decoder.Value(e.value, e.key, e.wire, &e.times), schema.ErrRange)
}
