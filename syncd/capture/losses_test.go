package capture_test

import (
	"testing"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

// TestLossesWithHooks overflows the smallest buffers while no reader runs. Each event must be
// delivered or counted as lost.
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
				unpin, err := dataplane.Pin(0) // one buffer and one sequence
				if err != nil {
					t.Fatal(err)
				}
				defer unpin()
				if failed, err := p.Run(); err != nil || failed != 0 {
					t.Fatalf("write the entries: got %d failed, error %v, want none", failed, err)
				}
				full := h.Stats()
				if full.Seen != writes || full.LostReservations == 0 || full.Events != 0 {
					t.Fatalf("stats without a reader: got %+v, want all writes seen, some lost, 0 events",
						full)
				}
				runCapture(t, h.Capture)
				poll.Eventually(t, "the events in the buffer", func() bool {
					return h.Stats().Events == writes-full.LostReservations
				})
				revealGap(t, p, h)
				checkLosses(t, h, writes+1)
				markRan(t, "losses "+string(buffer), h)
			})
		}
	}
}

// revealGap makes one more write, because only a later event reveals a gap.
func revealGap(t *testing.T, p *dataplane.Program, h *hookedCapture) {
	p.Reset()
	key, value := entry(48, 176, 0, 1000)
	p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
	if failed, err := p.Run(); err != nil || failed != 0 {
		t.Fatalf("write the entries: got %d failed, error %v, want none", failed, err)
	}
	poll.Eventually(t, "a sequence gap", func() bool { return h.Stats().SequenceGaps != 0 })
}

func checkLosses(t *testing.T, h *hookedCapture, writes uint64) {
	s := h.Stats()
	if s.Events+s.LostReservations != writes || s.SequenceGaps != s.LostReservations {
		t.Errorf("%d writes: got %+v, want each write delivered or lost, gaps equal to reservations lost",
			writes, s)
	}
	if h.buffer == capture.BufferPerf && s.PerfLost != s.LostReservations {
		t.Errorf("losses reported by the perf buffer: got %d, want %d as reported by the hooks",
			s.PerfLost, s.LostReservations)
	}
	if s.Lost() != s.LostReservations+s.Skipped || s.Malformed != 0 {
		t.Errorf("total losses: got %d of %+v, want lost reservations and skipped runs", s.Lost(), s)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if after := h.Stats(); after != s {
		t.Errorf("stats after Close: got %+v, want %+v", after, s)
	}
}

// TestRaceOfCloseAndStats closes a capture while it is in use.
func TestRaceOfCloseAndStats(t *testing.T) {
	for _, attach := range attaches {
		t.Run(string(attach), func(t *testing.T) {
			h := openHooks(t, capture.Options{Attach: attach})
			m, id := newHash(t, ebpf.Hash, 8, 16, 128)
			h.watch(t, id, 8, 16)
			runCapture(t, h.Capture)
			p := openDataPlane(t, m, dataplane.Options{Capacity: 100, RunWrites: 10})
			k, err := kmap.Open(m, kmap.Options{OwnWriteMarks: h.ownWriteMarks})
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
				// The pauses avoid a crash of emulated processors: they occasionally fail if they
				// run only the hooked function while the kernel removes the hook. See
				// scripts/test-kernels.
				time.Sleep(time.Millisecond)
				_, err := p.Run()
				return err
			})
			w.start(t, func() error { h.Stats(); return nil })
			poll.Eventually(t, "events under load", func() bool { return h.Stats().Events > 0 })
			if err := h.Close(); err != nil {
				t.Error(err)
			}
			w.stop(t)
			s := h.Stats()
			if s.Events == 0 || s.Seen < s.Events || s.Malformed != 0 {
				t.Errorf("stats: got %+v, want some events, at most as many as seen, none malformed", s)
			}
			if err := h.Watch(id+1, newTable(t, 8, 16)); err == nil {
				t.Error("watch after Close: got no error, want an error")
			}
			markRan(t, "close", h)
		})
	}
}
