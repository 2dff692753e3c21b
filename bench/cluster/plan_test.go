package cluster

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// faultKind is what goes wrong.
type faultKind string

const (
	faultKill   faultKind = "kill"   // of syncd, started again with another clock
	faultStop   faultKind = "stop"   // SIGSTOP, SIGCONT
	faultCut    faultKind = "cut"    // of some directions: a partition, or one way
	faultStarve faultKind = "starve" // of all: others take the CPUs
	faultClock  faultKind = "clock"  // the machine's wall clock is set

	faultHostile faultKind = "hostile" // a member with a certificate sends what no node would
	faultCrowd   faultKind = "crowd"   // many names join, send a record and leave
)

// fault is one thing that goes wrong, from At to Until after the load began.
type fault struct {
	Kind      faultKind
	At, Until time.Duration
	Node      int           // killed or stopped
	Cut       []direction   // dropped
	Ahead     time.Duration // where clocks are after it, against the true time; of a guest, its own
	Names     int           // of a crowd
	AtOnce    int           // of these
	Abrupt    bool          // a guest is killed and does not leave
}

func (f *fault) String() string {
	s := fmt.Sprintf("%v to %v: %s", f.At.Round(time.Millisecond), f.Until.Round(time.Millisecond), f.Kind)
	switch f.Kind {
	case faultKill:
		return fmt.Sprintf("%s n%d, back with its clock %v ahead", s, f.Node, f.Ahead)
	case faultStop:
		return fmt.Sprintf("%s n%d", s, f.Node)
	case faultClock:
		return fmt.Sprintf("%s %v ahead", s, f.Ahead)
	case faultHostile:
		return fmt.Sprintf("%s, clock %v ahead, killed at the end %v", s, f.Ahead, f.Abrupt)
	case faultCrowd:
		return fmt.Sprintf("%s of %d names", s, f.Names)
	case faultCut:
		ways := make([]string, len(f.Cut))
		for i, d := range f.Cut {
			ways[i] = fmt.Sprintf("n%d>n%d", d.from, d.to)
		}
		return s + " " + strings.Join(ways, " ")
	}
	return s
}

// plan is one run of chaos: all that is decided by chance follows from its seed. What the
// kernel and the nodes make of it does not.
type plan struct {
	Seed            uint64
	Nodes           int
	Map             mapSettings
	Load            load
	Buffer          string
	BufferSize      int
	EvictionDeletes bool
	TombstoneTTL    time.Duration
	Ahead           []time.Duration // of each node's clock at its first start
	Length          time.Duration   // of the load
	Faults          []fault
	// Misfits are the maps of further nodes: of another layout, or with another name.
	Misfits []mapSettings
}

// chaosScale is how much happens, and how fast. Under emulation it is less, and all takes longer.
type chaosScale struct {
	most     int           // how many nodes there may be, misfits included where hooks are real
	unit     time.Duration // of faults
	interval time.Duration // from one step of a node's load to the next
	scan     time.Duration // from one scan to the next: what nobody reports is found by them
	hooks    bool          // real hooks, on a machine whose clock may be set
	names    int           // of a crowd; 0: nothing but nodes takes part
	atOnce   int           // of these
}

func newPlan(seed uint64, c chaosScale) *plan {
	r := rand.New(rand.NewPCG(seed, 0x6d61707379))
	p := &plan{
		Seed: seed, Nodes: min(3+r.IntN(3), c.most), Length: 5 * c.unit,
		Buffer: "ring", BufferSize: 1 << 20, TombstoneTTL: 15 * time.Minute,
		Load: load{Flows: 200 + r.IntN(400), Interval: c.interval, Mixed: &mix{Seed: seed, Shared: 20 + r.IntN(200)}},
	}
	p.Map.Entries = 1 << 14
	switch r.IntN(4) {
	case 0: // some of what is written drives out something else
		p.Map = mapSettings{LRU: true, Entries: 1024}
		p.EvictionDeletes = r.IntN(2) == 0
	case 1, 2:
		p.BufferSize = 4096 // overflows all the time
	}
	if p.BufferSize > 4096 && c.hooks && r.IntN(2) == 0 {
		p.Buffer, p.BufferSize = "perf", 64 // pages a CPU
	}
	for range p.Nodes {
		p.Ahead = append(p.Ahead, anyClock(r))
	}
	victim := r.IntN(2*p.Nodes) - p.Nodes // below 0: any node may be killed
	for range 2 + r.IntN(7) {
		f := p.fault(r, c)
		if f.Kind == faultKill && victim >= 0 {
			f.Node = victim
		}
		p.Faults = append(p.Faults, f)
	}
	p.guests(c)
	killed := func(f fault) bool { return f.Kind == faultKill }
	// A deletion must not be forgotten before a node is back that was away.
	if r.IntN(2) == 0 && !slices.ContainsFunc(p.Faults, killed) {
		p.TombstoneTTL = 2 * c.unit
	}
	return p
}

// guests adds what takes part beside the nodes, and pressure on an LRU map. It draws from a
// source of its own, so that what else is in a plan does not depend on it.
func (p *plan) guests(c chaosScale) {
	if c.names == 0 {
		return
	}
	r := rand.New(rand.NewPCG(p.Seed, 0x677565737473))
	if p.Map.LRU && r.IntN(2) == 0 { // most of what is written drives out something else
		p.Map.Entries = 256
	}
	if r.IntN(4) == 0 {
		p.Misfits = append(p.Misfits, mapSettings{ValueSize: valueSize - 16, Entries: 1024})
	}
	if r.IntN(4) == 0 {
		p.Misfits = append(p.Misfits, mapSettings{Name: "other", Entries: 1024})
	}
	if c.hooks {
		p.Misfits = p.Misfits[:min(len(p.Misfits), c.most-p.Nodes)]
	}
	if r.IntN(3) == 0 {
		f := fault{Kind: faultHostile, At: time.Duration(r.Int64N(int64(p.Length / 2))), Ahead: anyClock(r), Abrupt: r.IntN(2) == 0}
		f.Until = p.Length/2 + time.Duration(r.Int64N(int64(p.Length/2)))
		p.Faults = append(p.Faults, f)
	}
	if r.IntN(5) == 0 {
		p.Length *= 3
		p.Faults = append(p.Faults, fault{Kind: faultCrowd, Until: p.Length, Names: c.names, AtOnce: c.atOnce})
	}
}

func anyClock(r *rand.Rand) time.Duration {
	if r.IntN(2) == 0 {
		return 0
	}
	return time.Duration(r.Int64N(int64(2*time.Hour))) - time.Hour
}

func (p *plan) fault(r *rand.Rand, c chaosScale) fault {
	f := fault{At: time.Duration(r.Int64N(int64(p.Length)))}
	f.Until = min(f.At+c.unit/10+time.Duration(r.Int64N(int64(3*c.unit))), p.Length)
	f.Node = r.IntN(p.Nodes)
	kinds := []faultKind{faultKill, faultKill, faultStop, faultStop, faultCut, faultCut, faultCut, faultStarve}
	if c.hooks {
		kinds = append(kinds, faultClock)
	}
	switch f.Kind = kinds[r.IntN(len(kinds))]; f.Kind {
	case faultKill:
		f.Ahead = anyClock(r)
	case faultClock:
		f.Ahead = anyClock(r) * 5 / 6 // certificates are good from an hour ago
	case faultCut:
		f.Cut = p.anyCut(r)
	}
	return f
}

// anyCut is a partition into two, or some single directions.
func (p *plan) anyCut(r *rand.Rand) (cut []direction) {
	half := 1 + r.IntN(1<<p.Nodes-2) // a bit for each node, neither none nor all
	oneWay := r.IntN(3)
	for from := range p.Nodes {
		for to := range p.Nodes {
			a, b := half>>from&1, half>>to&1
			if a == b || (oneWay == 0 && a == 0) || (oneWay == 1 && r.IntN(2) == 0) {
				continue
			}
			cut = append(cut, direction{from, to})
		}
	}
	return cut
}

// remembered reports whether what a data plane wrote is sure to be known by a node other than
// one that has just started. When all that know an entry start at about the same time, each
// finds its own state of it in its map, and nobody can say which is the newest.
func (p *plan) remembered() bool {
	killed := make(map[int]bool)
	for _, f := range p.Faults {
		if f.Kind == faultKill {
			killed[f.Node] = true
		}
	}
	return len(killed) < 2
}

func (p *plan) String() string {
	var b strings.Builder
	kind := "hash"
	if p.Map.LRU {
		kind = fmt.Sprintf("lru, eviction-deletes %v", p.EvictionDeletes)
	}
	for i := range p.Misfits {
		kind += fmt.Sprintf(", with a node whose map is %q of %d bytes", cmp.Or(p.Misfits[i].Name, "ct"), cmp.Or(p.Misfits[i].ValueSize, valueSize))
	}
	fmt.Fprintf(&b, "seed %d: %d nodes, map of %d entries (%s), %s buffer of %d, tombstones for %v, %d own flows and %d shared, clocks %v ahead",
		p.Seed, p.Nodes, p.Map.Entries, kind, p.Buffer, p.BufferSize, p.TombstoneTTL, p.Load.Flows, p.Load.Mixed.Shared, p.Ahead)
	for i := range p.Faults {
		fmt.Fprintf(&b, "\n    %s", &p.Faults[i])
	}
	return b.String()
}

func TestPlansFollowFromTheirSeeds(t *testing.T) {
	c := chaosScale{most: 5, unit: time.Second, interval: time.Millisecond, hooks: true, names: 300, atOnce: 16}
	seen := make(map[faultKind]int)
	misfits := make(map[mapSettings]int)
	remembered := 0
	for seed := range uint64(200) {
		p := newPlan(seed, c)
		if again := newPlan(seed, c); !reflect.DeepEqual(p, again) {
			t.Fatalf("seed %d gives two plans:\n%v\n%v", seed, p, again)
		}
		if p.remembered() {
			remembered++
		}
		for _, m := range p.Misfits {
			misfits[m]++
		}
		if p.Nodes+len(p.Misfits) > c.most {
			t.Errorf("seed %d: %d nodes and %d misfits, want at most %d", seed, p.Nodes, len(p.Misfits), c.most)
		}
		for _, f := range p.Faults {
			seen[f.Kind]++
			if f.At < 0 || f.Until < f.At || f.Until > p.Length {
				t.Errorf("seed %d: fault out of time: %v", seed, &f)
			}
		}
	}
	if remembered < 100 {
		t.Errorf("in only %d of 200 plans it is known what was written", remembered)
	}
	for _, k := range []faultKind{faultKill, faultStop, faultCut, faultStarve, faultClock, faultHostile, faultCrowd} {
		if seen[k] == 0 {
			t.Errorf("no %s in 200 plans", k)
		}
	}
	if len(misfits) != 2 {
		t.Errorf("200 plans have misfits %v, want one of another layout and one of another name", misfits)
	}
}
