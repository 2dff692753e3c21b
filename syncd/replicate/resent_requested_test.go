package replicate

import (
	"errors"
	"testing"

	"mapsync/syncd/table"
)

// TestBatchMarkedResentAndRequested checks that a batch that is marked both as resent and as
// requested is a protocol violation.
func TestBatchMarkedResentAndRequested(t *testing.T) {
	for _, requested := range []bool{false, true} {
		x := newInboundFixture(t)
		x.in.comparison.resend = &inboundResend{buckets: new(table.BucketSet)}
		m := stockBatch(x.in.index, 0, 10, 1)
		m.GetBatch().Resent, m.GetBatch().Requested, m.GetBatch().CaughtUp = true, requested, false
		if err := x.stream.handle(mustMarshal(t, m)); errors.Is(err, errProtocol) != requested {
			t.Errorf("requested %t: got %v, want a protocol error: %t", requested, err, requested)
		}
	}
}
