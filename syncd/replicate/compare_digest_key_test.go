package replicate

import (
	"testing"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// TestResendAfterChangeOfDigestKey: the buckets of a request belong to the key of the last digest. If the key changes before or
// during the resend, the node resends all records, because the peer concludes from the answer what this node does not have.
func TestResendAfterChangeOfDigestKey(t *testing.T) {
	const records = 3000
	for name, steps := range map[string]int{"before the resend": 0, "during the resend": 2} {
		t.Run(name, func(t *testing.T) {
			o := newOutboundFixture(t)
			putTable(t, o.tb, 0, records, 1)
			o.sendPending()
			set := new(table.BucketSet)
			for b := range table.DigestBuckets / 2 {
				set.Add(b)
			}
			if err := o.s.handleResendRequest(&mapsyncv1.ResendRequest{Map: 1, Buckets: wire.EncodeBucketSet(set)}); err != nil {
				t.Fatalf("request a resend: got %v, want no error", err)
			}
			for range steps {
				o.step()
			}
			o.tb.Update(func(tx *table.Tx) { tx.SetDigestKey([]byte("next")) })
			sent := o.sendPending()
			if end := sent[len(sent)-1].GetResent(); end.GetRecords() != records {
				t.Errorf("end of the resend: got %d records, want %d", end.GetRecords(), records)
			}
		})
	}
}

// TestRepairAfterChangeOfDigestKey: if the digest key of either node changes during a repair, the node infers no deletes.
func TestRepairAfterChangeOfDigestKey(t *testing.T) {
	for name, change := range keyChanges {
		t.Run(name, func(t *testing.T) {
			x := newInboundFixture(t)
			x.beginResend(nil)
			x.handle(x.resentBatch(1))
			x.handle(x.resentMessage())
			x.in.comparison.chooseBuckets(table.AllBuckets(), x.tb.DigestID())
			x.stream.appendComparisons(nil)
			change(x)
			x.handle(x.resentMessage())
			if got := len(live(x.tb)); (got == 0) != (name == "none") {
				t.Errorf("live records: got %d, want none only without a change", got)
			}
		})
	}
}

// keyChanges are changes of the digest key, of this node or of the peer.
var keyChanges = map[string]func(x *inboundFixture){
	"none":         func(*inboundFixture) {},
	"of this node": func(x *inboundFixture) { x.tb.Update(func(tx *table.Tx) { tx.SetDigestKey([]byte("next")) }) },
	"of the peer": func(x *inboundFixture) {
		m := x.digestMessage(true)
		m.GetDigest().KeyFingerprint++
		x.handle(m)
	},
	"of the peer, for a moment": func(x *inboundFixture) {
		m := x.digestMessage(true)
		m.GetDigest().KeyFingerprint++
		x.handle(m)
		x.handle(x.digestMessage(true))
	},
}

// TestBucketsOfFormerDigestKey: if the digest key of either node changes between the choice of buckets and their request, the
// buckets have other keys. The node does not request them, and a list chooses its buckets again.
func TestBucketsOfFormerDigestKey(t *testing.T) {
	for name, change := range keyChanges {
		for _, l := range []*diffList{nil, {done: make(chan struct{}), bucketsChosen: true}} {
			x := newInboundFixture(t)
			c := &x.in.comparison
			c.list = l
			c.chooseBuckets(table.AllBuckets(), x.tb.DigestID())
			change(x)
			x.stream.appendComparisons(nil)
			if requested := c.resend != nil; requested != (name == "none") {
				t.Errorf("change %s, list %t: buckets requested: got %t, want %t", name, l != nil, requested, name == "none")
			}
			if l != nil && name == "of this node" && (l.bucketsChosen || c.list != l) {
				t.Errorf("change %s: got buckets chosen %t, want a list that chooses again", name, l.bucketsChosen)
			}
		}
	}
}
