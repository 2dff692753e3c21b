package capture_test

import (
	"testing"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

// TestLossesWithHooks overflows the smallest buffers while nobody reads: each
// event is delivered or accounted for.
func TestLossesWithHooks(t *testing.T) {
	const writes = 300
	for _, attach := range attaches {
		for buffer, size := range map[capture.Buffer]int{capture.BufferRing: 4096, capture.BufferPerf: 1} {
			t.Run(string(attach)+"/"+string(buffer), func(t *testing.T) {
				h := openHooks(t, capture.Options{Attach: attach, Buffer: buffer, BufferSize: size})
				m, id := newHash(t, ebpf.Hash, 48, 176, 2*writes)
				h.watch(t, id, 48, 176)
				p := openDataPlane(t, m, dataplane.Options{Capacity: writes, RunWrites: 10})
				for i := range writes {
					key, value := entry(48, 176, i, i)
					p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
				}
				unpin, err := dataplane.Pin(0) // one buffer, one sequence
				if err != nil {
					t.Fatal(err)
				}
				defer unpin()
				if failed, err := p.Run(); err != nil || failed != 0 {
					t.Fatal(failed, err)
				}
				full := h.Stats()
				if full.Seen != writes || full.LostReservations == 0 || full.Events != 0 {
					t.Fatalf("with nobody reading: %+v", full)
				}
				runCapture(t, h.Capture)
				eventually(t, "what the buffer held", func() bool {
					return h.Stats().Events == writes-full.LostReservations
				})
				revealGap(t, p, h)
				checkLosses(t, h, writes+1)
				ran(t, "losses "+string(buffer), h)
			})
		}
	}
}

// revealGap makes one more write: only an event tells of those before it.
func revealGap(t *testing.T, p *dataplane.Program, h *hooked) {
	p.Reset()
	key, value := entry(48, 176, 0, 1000)
	p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
	if failed, err := p.Run(); err != nil || failed != 0 {
		t.Fatal(failed, err)
	}
	eventually(t, "the gap", func() bool { return h.Stats().SequenceGaps != 0 })
}

func checkLosses(t *testing.T, h *hooked, writes uint64) {
	s := h.Stats()
	if s.Events+s.LostReservations != writes || s.SequenceGaps != s.LostReservations {
		t.Errorf("of %d writes: %+v", writes, s)
	}
	if h.buffer == capture.BufferPerf && s.PerfLost != s.LostReservations {
		t.Errorf("the perf buffer tells of %d losses, the hooks of %d", s.PerfLost, s.LostReservations)
	}
	if s.Lost() != s.LostReservations+s.Skipped || s.Malformed != 0 {
		t.Errorf("%d lost in all: %+v", s.Lost(), s)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if after := h.Stats(); after != s {
		t.Errorf("counters after Close: %+v, before: %+v", after, s)
	}
}

// TestRaceOfCloseAndStats has everything end while it is in use.
func TestRaceOfCloseAndStats(t *testing.T) {
	for _, attach := range attaches {
		t.Run(string(attach), func(t *testing.T) {
			h := openHooks(t, capture.Options{Attach: attach})
			m, id := newHash(t, ebpf.Hash, 8, 16, 128)
			h.watch(t, id, 8, 16)
			runCapture(t, h.Capture)
			p := openDataPlane(t, m, dataplane.Options{Capacity: 100, RunWrites: 10})
			k, err := kmap.Open(m, kmap.Options{OwnWriter: h.ownWriter})
			if err != nil {
				t.Fatal(err)
			}
			defer k.Close()
			for i := range 100 {
				key, value := entry(8, 16, i, i)
				p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
			}
			var w workers
			w.start(t, func() error {
				// With pauses: emulated processors that run nothing but the hooked function while the
				// kernel takes the hook back break down now and then, see scripts/test-kernels.
				time.Sleep(time.Millisecond)
				_, err := p.Run()
				return err
			})
			w.start(t, func() error { h.Stats(); return nil })
			time.Sleep(100 * time.Millisecond)
			if err := h.Close(); err != nil {
				t.Error(err)
			}
			w.stop(t)
			s := h.Stats()
			if s.Events == 0 || s.Seen < s.Events || s.Malformed != 0 {
				t.Errorf("%+v", s)
			}
			if err := h.Watch(id+1, newTable(t, 8, 16)); err == nil {
				t.Error("a closed capture watches")
			}
			ran(t, "close", h)
		})
	}
}
