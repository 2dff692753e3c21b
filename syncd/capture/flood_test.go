package capture_test

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/internal/injector"
	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// TestCaptureContinuesAfterFlood writes on all CPUs faster than the capture reads, through small buffers. The capture must
// not end, and must count each event as received or lost.
func TestCaptureContinuesAfterFlood(t *testing.T) {
	for buffer, size := range map[capture.Buffer]int{capture.BufferRing: 1 << 17, capture.BufferPerf: 16} {
		t.Run(string(buffer), func(t *testing.T) { testFlood(t, buffer, size) })
	}
}

func testFlood(t *testing.T, buffer capture.Buffer, size int) {
	const entries, part, length = 1024, 64, 3 * time.Second
	c := openNoneWith(t, buffer, size)
	m, id := newHash(t, ebpf.Hash, 48, 176, entries)
	tab := newTable(t, 48, 176)
	if err := c.Watch(id, tab); err != nil {
		t.Fatal(err)
	}
	runCapture(t, c) // fails the test if the capture ends with an error
	f := openInjectorWith(t, m, c, injector.Options{Capacity: entries, Perf: buffer == capture.BufferPerf})
	for i := range entries {
		key, value := entry(48, 176, i, 1)
		f.Add(table.OpUpdate, table.ContextPacket, key, value)
	}
	var mu sync.Mutex
	var made uint64
	var group sync.WaitGroup
	// One writer for each CPU: on a preemptible kernel, writers on one CPU interrupt each other in the injector. The
	// kernel skips a hook there instead.
	for cpu := range runtime.NumCPU() {
		at := cpu % (entries / part)
		group.Go(func() {
			unpin, err := dataplane.Pin(cpu)
			if err != nil {
				t.Error(err)
				return
			}
			defer unpin()
			n := uint64(0)
			lossless := func() bool { s := c.Stats(); return s.Lost() == 0 }
			// Until a part is lost: the reader may be fast.
			for began := time.Now(); time.Since(began) < length || lossless() && time.Since(began) < poll.Lengthened(poll.Limit); n += part {
				if failed, err := f.RunPart(at*part, part); err != nil || failed > 0 {
					t.Errorf("write entries: %d failed, %v, want none", failed, err)
					break
				}
			}
			mu.Lock()
			defer mu.Unlock()
			made += n
		})
	}
	group.Wait()
	poll.Eventually(t, "all events are received or lost", func() bool {
		s := c.Stats()
		return s.Events+s.Lost() == made
	})
	if s := c.Stats(); s.Lost() == 0 {
		t.Error("flood: got no losses, want some: the test needs a faster writer")
	}
}
