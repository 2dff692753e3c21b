package capture_test

import (
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/syncd/capture"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// TestCostOfHooks prints the cost of a data-plane write with and without hooks. Under emulation
// only the proportions of the numbers are meaningful.
func TestCostOfHooks(t *testing.T) {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ns per write\tunwatched\twatched")
	for _, attach := range attaches {
		h := openHooks(t, capture.Options{Attach: attach})
		m, id := newHash(t, ebpf.Hash, 48, 176, 64)
		p := openDataPlane(t, m, dataplane.Options{Capacity: 16, RunWrites: 16, Endless: true})
		for i := range 16 {
			key, value := entry(48, 176, i, i)
			p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
		}
		h.tap(t)
		h.mu.Lock()
		h.observe = func(uint32, *table.Change) {}
		h.mu.Unlock()
		both := func(name string) {
			unwatched := writeCost(t, p)
			h.watch(t, id, 48, 176)
			watched := writeCost(t, p)
			h.Unwatch(id)
			fmt.Fprintf(w, "%s\t%d\t%d\n", name, unwatched, watched)
		}
		if attach == capture.AttachKprobe {
			both("kprobe and return probe")
			if err := h.DetachReturns(); err != nil {
				t.Fatal(err)
			}
			both("kprobe only (reports nothing)")
		} else {
			both("fexit")
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		if attach == capture.AttachKprobe {
			cost := writeCost(t, p)
			fmt.Fprintf(w, "no hook\t%d\t\n", cost)
		}
		markRan(t, "cost", h)
	}
	w.Flush()
	printKernel(text.String())
}

// writeCost returns the lowest measured duration of one write, in ns.
func writeCost(t *testing.T, p *dataplane.Program) int64 {
	t.Helper()
	const writes = 16 * 64
	best := int64(1 << 62)
	onCPU(t, busyCPU, func() error {
		for range 20 {
			before, begin := p.Done(), time.Now()
			if err := p.RunOnce(writes / 16); err != nil {
				return err
			}
			best = min(best, time.Since(begin).Nanoseconds()/int64(p.Done()-before))
		}
		return nil
	})
	return best
}
