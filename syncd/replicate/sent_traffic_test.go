package replicate

import (
	"fmt"
	"testing"
)

// TestSentTrafficIsBounded sends a map to many nodes that have left.
func TestSentTrafficIsBounded(t *testing.T) {
	r := &Replicator{}
	r.view.Store(&view{live: map[string]Peer{"b": {Node: "b"}}})
	kept := r.sentTo("b", "ct")
	kept.add(1, 10)
	for i := range 3 * maxSentTraffic {
		r.sentTo(fmt.Sprint("left", i), "ct").add(1, 1)
	}
	if n := len(r.sentTraffic.of); n > maxSentTraffic {
		t.Errorf("counts: got %d, want at most %d", n, maxSentTraffic)
	}
	if got := r.sentTo("b", "ct"); got != kept || got.load().Bytes != 10 {
		t.Errorf("count of the live node: got %+v, want 10 bytes, kept", got.load())
	}
	if other := r.sentTo("b", "nat"); other == kept {
		t.Error("count of another map: got that of ct, want another one")
	}
}
