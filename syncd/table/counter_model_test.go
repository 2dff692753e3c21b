package table

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"mapsync/internal/race"
)

// countedMap is a kernel map with one key whose value is a counter. Two CPUs change it. Their events arrive late, and the
// table reads the key by scans and rereads, each of which begins, reads and ends at different times.
type countedMap struct {
	r      *rand.Rand
	tab    *Table
	clock  int64
	total  int // increases so far
	n      int
	exists bool
	events [2][]Change // of each CPU, in the order of their times
	last   [2]int64    // the time of the CPU's last event
	reads  []*countedRead
	trace  []string
}

// countedRead is a scan or a reread in progress.
type countedRead struct {
	reading Reading
	scan    bool
	begun   int64
	done    bool // the key was read
	n       int
	exists  bool
}

func (m *countedMap) note(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf("%.3f ms: ", float64(m.clock-second)/1e6)+fmt.Sprintf(format, args...))
}

// write changes the entry. An event takes its time up to 0.3 ms after the change.
func (m *countedMap) write(cpu int, op Op) {
	m.last[cpu] = max(m.last[cpu]+1, m.clock+m.r.Int64N(300_000))
	c := Change{Key: pad("k", keySize), Time: m.last[cpu], Op: op, Context: ContextPacket, CPU: uint16(cpu)}
	if op == OpUpdate {
		c.Value = pad(fmt.Sprint(m.n), valueSize)
	}
	m.events[cpu] = append(m.events[cpu], c)
	m.note("CPU %d: %v %d, event at %.3f ms", cpu, op, m.n, float64(c.Time-second)/1e6)
}

func (m *countedMap) deliver(cpu int) {
	if len(m.events[cpu]) == 0 || m.events[cpu][0].Time > m.clock {
		return
	}
	c := m.events[cpu][0]
	m.events[cpu] = m.events[cpu][1:]
	m.tab.Update(func(tx *Tx) {
		tx.AdvanceClock(m.clock)
		m.note("event of CPU %d: %s: %v", cpu, text(c.Value), tx.Local(&c))
	})
}

func (m *countedMap) begin(scan bool) {
	r := &countedRead{scan: scan, begun: m.clock}
	m.tab.Update(func(tx *Tx) {
		if !scan && tx.TakeRereads(make([]byte, keySize)) == 0 {
			return
		}
		tx.BeginReading(&r.reading)
		m.reads = append(m.reads, r)
		m.note("begin of read %p, scan: %t", r, scan)
	})
}

// advanceRead reads the key, or enters what was read.
func (m *countedMap) advanceRead(i int) {
	r := m.reads[i]
	if !r.done {
		r.done, r.n, r.exists = true, m.n, m.exists
		m.note("read %p: %d, %t", r, r.n, r.exists)
		return
	}
	m.reads = slices.Delete(m.reads, i, i+1)
	c := Change{Key: pad("k", keySize), Time: r.begun, Op: OpDelete, Context: ContextReread, Read: &r.reading}
	if r.exists {
		c.Op, c.Value = OpUpdate, pad(fmt.Sprint(r.n), valueSize)
	}
	m.tab.Update(func(tx *Tx) {
		tx.AdvanceClock(m.clock)
		switch {
		case r.scan && r.exists:
			tx.ScannedAll(&r.reading, r.begun, c.Key, c.Value)
			m.note("scan %p enters %d", r, r.n)
		case !r.scan:
			m.note("reread %p enters %d, %t: %v", r, r.n, r.exists, tx.Local(&c))
		}
		tx.EndReading(&r.reading)
	})
}

// step does one thing. Values only rise, unless resets.
func (m *countedMap) step(resets bool) {
	m.clock += m.r.Int64N(400_000)
	d := 1 + m.r.IntN(50)
	switch k := m.r.IntN(20); {
	case !m.exists:
		m.exists, m.n, m.total = true, d, m.total+d
		m.write(m.r.IntN(2), OpUpdate)
	case k == 0 && resets:
		m.exists, m.n = false, 0
		m.write(m.r.IntN(2), OpDelete)
	case k == 1 && resets:
		m.n, m.total = d, m.total+d
		m.write(m.r.IntN(2), OpUpdate)
	case k < 6:
		m.n, m.total = m.n+d, m.total+d
		m.write(m.r.IntN(2), OpUpdate)
	case k < 8:
		m.n, m.total = m.n+d, m.total+d
		m.note("in place: %d", m.n)
	case k < 9:
		m.begin(true)
	case k < 11:
		m.begin(false)
	case k < 16 && len(m.reads) > 0:
		m.advanceRead(m.r.IntN(len(m.reads)))
	default:
		m.deliver(m.r.IntN(2))
	}
}

// settle delivers all events, and reads the key until no reread is requested.
func (m *countedMap) settle(t *testing.T) {
	t.Helper()
	m.clock += second
	for cpu := range m.events {
		for len(m.events[cpu]) > 0 {
			m.deliver(cpu)
		}
	}
	for len(m.reads) > 0 {
		m.advanceRead(0)
	}
	m.clock += second
	m.begin(true)
	for round := 0; ; round++ {
		for len(m.reads) > 0 {
			m.advanceRead(0)
		}
		m.clock += 300_000 // less than timestampMargin
		if m.begin(false); len(m.reads) == 0 {
			return
		}
		if round == 20 {
			t.Fatalf("rereads of a map that does not change: got %d, want an end", round)
		}
	}
}

// TestCounterFollowsModel compares the counted increases with those that happened. If values only rise, they are equal. After a
// reset or a delete, a late value may pass for an increase, in few runs.
func TestCounterFollowsModel(t *testing.T) {
	race.SkipSequential(t)
	all, surplus := 0, 0
	for seed := range uint64(20_000) {
		resets := seed%2 == 1
		var got calls
		options := []func(*Options){counted(&got)}
		if seed%4 < 2 {
			options = append(options, insignificant)
		}
		if seed%8 < 2 {
			options = append(options, notCarried)
		}
		m := &countedMap{r: rand.New(rand.NewPCG(seed, 3)), clock: second, tab: newRig(t, options...).tab}
		for range 60 {
			m.step(resets)
		}
		m.settle(t)
		all += m.total
		surplus += max(0, got.total-m.total)
		if !resets && got.total != m.total {
			for _, line := range m.trace {
				t.Log(line)
			}
			t.Fatalf("seed %d, resets %t: got %d, want %d; calls %q", seed, resets, got.total, m.total, got.list)
		}
	}
	if surplus > all/10_000 {
		t.Errorf("increases that did not happen: got %d of %d, want at most one in 10,000", surplus, all)
	}
}
