package replicate

import (
	"errors"
	"testing"

	"mapsync/syncd/table"
)

// TestRepairBatchThatIsRequested: a peer marks a batch as part of a repair and as requested. That is a
// violation of the protocol.
func TestRepairBatchThatIsRequested(t *testing.T) {
	for _, requested := range []bool{false, true} {
		x := newStreamless(t)
		x.in.comparing.job = &job{in: new(table.BucketSet)}
		m := stockBatch(x.in.index, 0, 10, 1)
		m.GetBatch().Retold, m.GetBatch().Requested, m.GetBatch().CaughtUp = true, requested, false
		if err := x.l.take(mustMarshal(t, m)); errors.Is(err, errProtocol) != requested {
			t.Errorf("requested %t: %v", requested, err)
		}
	}
}
