package replicate

import (
	"testing"
	"time"

	"mapsync/syncd/table"
)

// TestDigestAfterBuckets checks that the pause after a digest with buckets is the normal one, although
// nothing has changed since the digest before: the peer has found a difference.
func TestDigestAfterBuckets(t *testing.T) {
	o := newOutboundFixture(t)
	putTable(t, o.tb, 1, 3, 1)
	o.sendPending()
	for range 2 {
		o.m.comparison.bucketsRequested.Store(true)
		o.now = o.now.Add(time.Hour)
		o.oneDigest("with buckets")
	}
	o.now = o.now.Add(o.r.opt.digestInterval)
	o.oneDigest("after an interval")
}

// TestResendWaitsForCompleteTable checks that a resend begins once the table has adopted its entries, and
// that the sending goroutine does not run in a loop until then.
func TestResendWaitsForCompleteTable(t *testing.T) {
	o := newOutboundFixture(t)
	o.tb.Update(func(tx *table.Tx) {
		tx.BeginLoad()
		tx.Load(key(1), value(1))
		tx.EndLoad()
	})
	o.step() // accepts the subscription
	o.requestResend(allBuckets())
	if o.sendPending(); o.m.comparison.resend != nil || o.r.Stats().Resends != 0 {
		t.Errorf("incomplete table: got resend %+v, want none", o.m.comparison.resend)
	}
	o.tb.Update(func(tx *table.Tx) { tx.Adopt(10) })
	sent := o.sendPending()
	if end := sent[len(sent)-1].GetResent(); end.GetRecords() != 1 {
		t.Errorf("complete table: got %v, want the end of a resend of 1 record", sent[len(sent)-1])
	}
}

// TestResendVisitsFewRecordsAtOnce checks that a step of a resend visits at most maxBatchScan records,
// because the table is locked meanwhile.
func TestResendVisitsFewRecordsAtOnce(t *testing.T) {
	o := newOutboundFixture(t)
	putTable(t, o.tb, 0, maxBatchScan+10, 1)
	o.sendPending()
	o.requestResend(new(table.BucketSet))
	o.step() // begins the resend
	if o.step(); o.m.comparison.resend == nil || o.m.comparison.resend.cursor.Position() != maxBatchScan {
		t.Errorf("first step of the resend: got %+v, want position %d", o.m.comparison.resend, maxBatchScan)
	}
}
