package replicate

import (
	"sync/atomic"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// Stats is a snapshot of a Replicator's counters since its start.
type Stats struct {
	// Peers is the number of live peers.
	Peers int
	// Connected is the number of peers from which this node receives changes at present.
	Connected int
	// Serving is the number of streams that this node serves to peers at present, and Observers the
	// number of those to observers.
	Serving, Observers int
	// Maps is the number of maps.
	Maps int

	// Sent and Received count the batches of all streams.
	Sent, Received Traffic
	// DeltasAccepted counts received deltas that changed the table.
	DeltasAccepted uint64
	// DeltasRefused counts received deltas that were set aside. It includes the deltas that a table
	// refused, DeltasOutOfRange and DeltasWithoutInterface. DeltasOutOfRange counts those with a
	// number that does not fit this node's field, DeltasWithoutInterface those with an interface
	// that this node does not have.
	DeltasRefused, DeltasOutOfRange, DeltasWithoutInterface uint64
	// DeltasUnencodable counts attempts to send a record that cannot be encoded: the padding of its
	// key is not zero, or an interface in the key does not exist.
	DeltasUnencodable uint64
	// DeltasAhead counts received deltas with a version too far ahead of the local clock.
	DeltasAhead uint64

	// Connects counts streams established to peers. ConnectErrors counts streams that failed, at
	// once or later.
	Connects, ConnectErrors uint64
	// FullSyncs counts streams of a map to a peer that began at position 0. Resumes counts those
	// that continued from the peer's position.
	FullSyncs, Resumes uint64
	// MapsRefused counts maps that this node refused to send because of the schema. MapsIncompatible
	// counts maps of peers that this node refused to receive because of the schema.
	MapsRefused, MapsIncompatible uint64
	// Gaps counts received batches that did not continue at the position of the batch before.
	Gaps uint64
	// BadMessages counts messages of senders that were malformed or violated the protocol,
	// including gaps. BadRequests counts those of receivers.
	BadMessages, BadRequests uint64
	// Digests counts comparisons of a map with a peer. DigestsDivergent counts those that found a
	// difference, including changes in flight. DigestsImpossible counts those that could not be made.
	Digests, DigestsDivergent, DigestsImpossible uint64
	// Repairs counts requests to resend records because of a difference. Repaired counts the
	// entries that they repaired.
	Repairs, Repaired uint64
	// Resends counts resend requests of peers. ResentRecords counts the records sent in reply.
	Resends, ResentRecords uint64
	// ReceiveTimeouts counts streams closed because no message arrived for too long.
	ReceiveTimeouts uint64
	// Unexplained counts repairs after which the digests still differed, or which found no difference.
	Unexplained uint64
}

// Traffic counts batches, the deltas in them, and their encoded bytes.
type Traffic struct {
	// Each batch counts once in Batches, with its deltas in Deltas and its encoded size in Bytes.
	Batches, Deltas, Bytes uint64
}

// traffic is a Traffic that is safe for concurrent use.
type traffic struct {
	// Only add changes the counts, one after the other. They never decrease.
	batches, deltas, bytes atomic.Uint64
}

// add counts one batch.
func (t *traffic) add(deltas, bytes int) {
	t.batches.Add(1)
	t.deltas.Add(uint64(deltas))
	t.bytes.Add(uint64(bytes))
}

// load returns the current counts. They may belong to different moments.
func (t *traffic) load() Traffic {
	return Traffic{t.batches.Load(), t.deltas.Load(), t.bytes.Load()}
}

// counters are the counters for Stats. All are atomic, so no lock guards them.
type counters struct {
	sent, received                traffic                   // all streams
	accepted, ahead               atomic.Uint64             // received deltas
	outOfRange, withoutInterface  atomic.Uint64             // set aside; a refused delta counts in exactly one of three
	refused                       atomic.Uint64             // set aside or refused by the table for all other reasons
	unencodable                   atomic.Uint64             // attempts to send a record
	connects, connectErrors       atomic.Uint64             // inbound streams
	fullSyncs, resumes            atomic.Uint64             // outbound map streams
	mapsRefused, mapsIncompatible atomic.Uint64             // subscriptions
	gaps                          atomic.Uint64             // received batches
	badMessages, badRequests      atomic.Uint64             // inbound and outbound streams
	receiveTimeouts               atomic.Uint64             // inbound streams
	inSync, divergent             atomic.Uint64             // comparisons; each counts in exactly one of three
	impossible                    atomic.Uint64             // comparisons without a difference that could not be completed
	repairs, repaired             atomic.Uint64             // requests of this node, and entries
	unexplained                   atomic.Uint64             // repairs that did not explain the difference
	resends, resentRecords        atomic.Uint64             // requests of peers, and records
	rejected                      [rejections]atomic.Uint64 // received records, by reason
}

// Stats returns a snapshot of the counters.
func (r *Replicator) Stats() Stats {
	c := &r.count
	// Each counter is read once, so the snapshot as a whole belongs to no single moment.
	s := Stats{
		Sent:                   c.sent.load(),
		Received:               c.received.load(),
		DeltasAccepted:         c.accepted.Load(),
		DeltasOutOfRange:       c.outOfRange.Load(),
		DeltasWithoutInterface: c.withoutInterface.Load(),
		DeltasUnencodable:      c.unencodable.Load(),
		DeltasAhead:            c.ahead.Load(),
		Connects:               c.connects.Load(),
		ConnectErrors:          c.connectErrors.Load(),
		FullSyncs:              c.fullSyncs.Load(),
		Resumes:                c.resumes.Load(),
		MapsRefused:            c.mapsRefused.Load(),
		MapsIncompatible:       c.mapsIncompatible.Load(),
		Gaps:                   c.gaps.Load(),
		BadMessages:            c.badMessages.Load(),
		BadRequests:            c.badRequests.Load(),
		ReceiveTimeouts:        c.receiveTimeouts.Load(),
		DigestsDivergent:       c.divergent.Load(),
		DigestsImpossible:      c.impossible.Load(),
		Repairs:                c.repairs.Load(),
		Repaired:               c.repaired.Load(),
		Unexplained:            c.unexplained.Load(),
		Resends:                c.resends.Load(),
		ResentRecords:          c.resentRecords.Load(),
	}
	// The sums use the values read above, so that no part is greater than the sum.
	s.DeltasRefused = s.DeltasOutOfRange + s.DeltasWithoutInterface + c.refused.Load()
	s.Digests = s.DigestsDivergent + s.DigestsImpossible + c.inSync.Load()
	r.countStreams(&s)
	return s
}

// countStreams sets the numbers of maps, peers and streams.
func (r *Replicator) countStreams(s *Stats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Maps = len(r.localMaps())
	for o := range r.outboundStreams {
		if o.observing.Load() {
			s.Observers++
		} else {
			s.Serving++
		}
	}
	for node := range r.view.Load().live {
		s.Peers++
		if r.inboundStreams[node].connected() {
			s.Connected++
		}
	}
}

// incarnation returns the wire format of an owner.
func incarnation(o table.Owner) *mapsyncv1.Incarnation {
	return &mapsyncv1.Incarnation{Node: o.Node, Number: o.Incarnation}
}
