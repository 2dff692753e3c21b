package replicate

import (
	"testing"
	"time"
)

// After a step of this node's clock, a repeated full sync, a clock probe and the dial of a node that was refused
// because of its incarnation are due at once. A map without refused records is not requested again.
func TestClockStepRepeatsDecisions(t *testing.T) {
	r, _ := newVerifierFixture(t, discoveredNode{hint: peerX(5), attempted: true, err: aheadError{time.Hour, time.Minute}, due: time.Now().Add(time.Hour), failures: 9})
	r.ClockStepped()
	for _, q := range r.verifier.nodes {
		if q.failures != 0 || time.Until(q.due) > 0 {
			t.Errorf("refused node: got %d failures and an attempt in %s, want one at once", q.failures, time.Until(q.due))
		}
	}
	later := time.Now().Add(time.Hour)
	waiting, complete := &inboundMap{repeatFullSyncAt: later, repeatedFullSyncs: 4}, &inboundMap{}
	s := &inboundStream{r: r, wake: make(chan struct{}, 1), maps: map[string]*inboundMap{"a": waiting, "b": complete}}
	s.clockStepped(time.Now())
	if waiting.repeatFullSyncAt.Equal(later) || waiting.repeatedFullSyncs != 0 || !complete.repeatFullSyncAt.IsZero() {
		t.Errorf("full syncs: got due at %s and %s, want the first one at once", waiting.repeatFullSyncAt, complete.repeatFullSyncAt)
	}
	if len(s.wake) != 1 || !s.clock.probeNow {
		t.Error("stream: got no wake-up or no probe, want both")
	}
}
