package drained_test

import (
	"runtime"
	"sync"
	"testing"

	"mapsync/syncd/drained"

	"github.com/cilium/ebpf"
)

// collector fills and drains a map without end, on one thread.
type collector struct {
	t          *testing.T
	m          *ebpf.Map
	stop, done chan struct{}

	mu      sync.Mutex            // held during calls
	bytes   [collectorKeys]uint64 // of the drained entries
	entries int                   // drained
	lost    int                   // of them in no sum at the last check
	calls   int                   // that may have drained them: missed, unread, or without an end
}

// collectorKeys is the number of keys of the collector. It drains up to collectorBatch in a call.
const collectorKeys, collectorBatch = 20, 7

func startCollector(t *testing.T, m *ebpf.Map) *collector {
	c := &collector{t: t, m: m, stop: make(chan struct{}), done: make(chan struct{})}
	go c.run()
	return c
}

func (c *collector) run() {
	defer close(c.done)
	runtime.LockOSThread()
	for i := uint64(0); ; i++ {
		select {
		case <-c.stop:
			return
		default:
			c.collect(i)
		}
	}
}

func (c *collector) collect(i uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range collectorKeys {
		put(c.t, c.m, k, value(1, 1, i))
		c.bytes[k] += i
	}
	c.entries += drain(c.t, c.m, collectorBatch)
}

func (c *collector) end() {
	close(c.stop)
	<-c.done
}

// maxUnread is the maximum number of calls in a test whose entries cannot be read. A program cannot wait for a page that the
// kernel moves at that moment (khugepaged). Such a call counts once, or once for each entry.
const maxUnread = 2

// checkLost checks that each entry since the last check is in the sums, or belongs to a call that counts as missed or
// unread, or that has no end.
func (c *collector) checkLost(s *drained.Sums) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	st := s.Stats()
	lost, calls := c.entries-int(st.Entries), int(st.Missed+st.Unread)
	if _, ended := s.Calls(); !ended {
		calls++
	}
	if lost-c.lost > collectorBatch*(calls-c.calls) {
		c.t.Errorf("entries in no sum: got %d, want at most %d in each of %d calls that count as missed or unread, stats %+v", lost-c.lost, collectorBatch, calls-c.calls, st)
	}
	c.lost, c.calls = lost, calls
}
