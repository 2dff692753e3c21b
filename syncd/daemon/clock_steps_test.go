package daemon_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mapsync/internal/poll"

	"github.com/cilium/ebpf"
)

// steppedClock is a wall clock that a test sets while the node runs.
type steppedClock struct{ ahead atomic.Int64 }

func (c *steppedClock) now() time.Time          { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *steppedClock) set(ahead time.Duration) { c.ahead.Store(int64(ahead)) }

// entriesWith returns the number of entries of a map with a value.
func entriesWith(t *testing.T, m *ebpf.Map, value uint64) (n int) {
	t.Helper()
	var k, v uint64
	for it := m.Iterate(); it.Next(&k, &v); {
		if v == value {
			n++
		}
	}
	return n
}

// lacksEach returns how many of the keys [0, count) a map lacks.
func lacksEach(m *ebpf.Map, count uint64) (missing int) {
	for i := range count {
		if !has(m, i) {
			missing++
		}
	}
	return missing
}

// The clock of a node is set by 20 min while it runs, back and forth, with max-clock-ahead at 1 min. Changes
// that peers refuse meanwhile arrive within 10 s after the clock is right, without a restart. In both
// directions, and for new entries, changes and deletes alike. No other entry is missing on the reader at any reading, also after
// comparisons while the clock is wrong.
func TestClockStepsLoseNothing(t *testing.T) {
	for name, c := range map[string]struct {
		writer, reader time.Duration // lead of the clock while it is wrong
	}{
		"writer ahead": {20 * time.Minute, 0}, "writer behind": {-20 * time.Minute, 0}, // set back and forth
		"reader behind": {0, -20 * time.Minute}, "reader ahead": {0, 20 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			n1, n2, m1, m2 := twoNodes(t, 100)
			var w, r steppedClock
			n1.wall, n2.wall = w.now, r.now
			n1.start()
			n2.start()
			poll.Eventually(t, "both are ready", func() bool {
				return n1.status().Ready && n2.status().Ready && len(n1.status().Peers) == 1 && len(n2.status().Peers) == 1
			})
			n1.write(m1, 0, 30, 1)
			poll.Eventually(t, "n2 holds the entries", func() bool { return entriesWith(t, m2, 1) == 30 })
			w.set(c.writer)
			r.set(c.reader)
			for _, n := range []*node{n1, n2} {
				poll.Eventually(t, "the problem is shown", func() bool { return len(n.status().ClockProblems) == 1 })
			}
			within := func(what string, ok func() bool) {
				poll.Eventually(t, what, func() bool {
					if n := lacksEach(m2, 20); n > 0 {
						t.Fatalf("%s: entries that n2 lacks: got %d, want 0", what, n)
					}
					return ok()
				})
			}
			remove := func(from uint64) {
				n1.applyEntries(m1, 5, func(i int) (key, value []byte) { key, _ = pair(from+uint64(i), 0); return key, nil })
			}
			n1.write(m1, 0, 10, 2)
			n1.write(m1, 30, 40, 2)
			remove(20)
			compared, v := n2.comparisons(), uint64(100)
			within("n2 compares its entries while a clock is wrong", func() bool {
				v++
				n1.write(m1, 50, 51, v) // comparisons are frequent while something changes
				return n2.comparisons() > compared+1
			})
			w.set(0)
			r.set(0)
			right := time.Now()
			n1.write(m1, 40, 50, 2)
			remove(25)
			within("n2 holds all changes", func() bool { return entriesWith(t, m2, 2) == 30 && entriesWith(t, m2, 1) == 10 })
			if took := time.Since(right); took > poll.Lengthened(10*time.Second) {
				t.Errorf("changes arrived %s after the clock was right, want 10 s at most", took)
			}
			if entriesWith(t, m1, 2) != 30 || entriesWith(t, m1, 1) != 10 {
				t.Errorf("map of the writer: got %d new and %d old entries, want 30 and 10", entriesWith(t, m1, 2), entriesWith(t, m1, 1))
			}
			for _, n := range []*node{n1, n2} {
				poll.Eventually(t, "the problem ends", func() bool { return len(n.status().ClockProblems) == 0 })
			}
		})
	}
}

// Of two clocks, none is blamed, unless one kernel reports that its clock is not synchronised.
func TestUnsynchronisedClockIsNamed(t *testing.T) {
	n1, n2, _, _ := twoNodes(t, 100)
	var clock steppedClock
	var unsynchronised atomic.Bool
	n1.wall = clock.now
	n1.unsync, n2.unsync = unsynchronised.Load, func() bool { return false }
	n1.start()
	n2.start()
	poll.Eventually(t, "both are connected", func() bool { return len(n1.status().Peers) == 1 && len(n2.status().Peers) == 1 })
	clock.set(-time.Hour)
	for want, bit := range map[string]bool{"no majority": false, "the clock of n1 is 1h0m0s behind": true} {
		unsynchronised.Store(bit)
		for _, n := range []*node{n1, n2} {
			poll.Eventually(t, n.config.NodeName+" shows: "+want, func() bool {
				s := n.status().ClockProblems
				return len(s) == 1 && strings.Contains(s[0], want)
			})
		}
	}
}
