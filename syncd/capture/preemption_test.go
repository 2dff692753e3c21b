package capture_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"

	"mapsync/internal/poll"
	"mapsync/syncd/capture"
)

// TestSkippedRunsAreCounted: two tasks write on one CPU by bpf(2) without pause. A preemptible kernel preempts one of them
// in a hook and skips the hook for the writes of the other. Each write is either seen or counted as skipped.
func TestSkippedRunsAreCounted(t *testing.T) {
	const writes = 100_000
	h := openHooks(t, capture.Options{Attach: capture.AttachFexit})
	m, id := newHash(t, ebpf.Hash, 8, 16, 128)
	h.watch(t, id, 8, 16)
	runCapture(t, h.Capture)
	var w workers
	var done atomic.Uint64
	for task := range 2 {
		n := 0
		w.start(t, func() error {
			key, value := entry(8, 16, task*64+n%64, n)
			n++
			done.Add(1)
			return m.Put(key, value)
		})
	}
	poll.Within(t, 6*poll.Limit, "the writes are made", func() bool { return done.Load() >= writes })
	w.stop(t)
	s, all := h.Stats(), done.Load()
	printKernel(fmt.Sprintf("two tasks write on one CPU by bpf(2): %d of %d writes missed", s.Skipped, all))
	if s.Seen+s.Skipped != all {
		t.Errorf("writes: got %d seen and %d skipped of %d, want all", s.Seen, s.Skipped, all)
	}
}
