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

// faultKind is the kind of a fault.
type faultKind string

const (
	faultKill   faultKind = "kill"   // of syncd, which restarts with another clock
	faultStop   faultKind = "stop"   // SIGSTOP, then SIGCONT
	faultCut    faultKind = "cut"    // of some directions: a partition, or one-way losses
	faultStarve faultKind = "starve" // of all syncds: other processes use the CPUs
	faultClock  faultKind = "clock"  // a new time of the machine's wall clock
	faultStep   faultKind = "step"   // the wall clock of one syncd: its records are refused, or it refuses those of its peers
	faultLink   faultKind = "link"   // of an interface that entries name, on one node: it is removed, and comes back

	faultHostile faultKind = "hostile" // a member with a certificate sends messages that no node would send
	faultChurn   faultKind = "churn"   // many names join, send a record and leave
)

// fault is one fault, from At to Until after the start of the load.
type fault struct {
	Kind      faultKind
	At, Until time.Duration
	Node      int           // killed or stopped node, or that with another clock or without its interface
	Cut       []direction   // directions whose packets are dropped
	Ahead     time.Duration // offset of the clocks, or of an extra member's clock, to the true time
	Names     int           // number of names of the churn member
	AtOnce    int           // maximum of Names that are joined at the same time
	Abrupt    bool          // an extra member is killed instead of leaving
}

func (f *fault) String() string {
	s := fmt.Sprintf("%v to %v: %s", f.At.Round(time.Millisecond), f.Until.Round(time.Millisecond), f.Kind)
	switch f.Kind {
	case faultKill:
		return fmt.Sprintf("%s n%d, back with its clock %v ahead", s, f.Node, f.Ahead)
	case faultStop, faultLink:
		return fmt.Sprintf("%s n%d", s, f.Node)
	case faultStep:
		return fmt.Sprintf("%s of n%d, %v ahead", s, f.Node, f.Ahead)
	case faultClock:
		return fmt.Sprintf("%s %v ahead", s, f.Ahead)
	case faultHostile:
		return fmt.Sprintf("%s, clock %v ahead, killed at the end %v", s, f.Ahead, f.Abrupt)
	case faultChurn:
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

// plan is one run of chaos. All its random choices follow from its seed. The behaviour of the
// kernel and the nodes does not.
type plan struct {
	Seed            uint64
	Nodes           int
	Map             mapSettings
	Load            load
	Buffer          string
	BufferSize      int
	EvictionDeletes bool
	TombstoneTTL    time.Duration
	Ahead           []time.Duration // offset of each node's clock at its first start
	Length          time.Duration   // of the load
	Faults          []fault
	MaxClockAhead   time.Duration // setting of the nodes
	// Incompatible are the maps of further nodes: with another layout or another name.
	Incompatible []mapSettings
}

// chaosScale is the size and the speed of a run. Under emulation a run is smaller and slower.
type chaosScale struct {
	most     int           // most nodes; with real hooks incompatible nodes count, too
	unit     time.Duration // time unit of faults
	interval time.Duration // interval between two steps of a node's load
	scan     time.Duration // interval between two scans, which find unreported changes
	hooks    bool          // real hooks, on a machine whose clock may be set
	names    int           // number of names of the churn member; 0: no extra members
	atOnce   int           // maximum of names that are joined at the same time
}

func newPlan(seed uint64, c chaosScale) *plan {
	r := rand.New(rand.NewPCG(seed, 0x6d61707379))
	p := &plan{
		Seed: seed, Nodes: min(3+r.IntN(3), c.most), Length: 5 * c.unit,
		Buffer: "ring", BufferSize: 1 << 20, TombstoneTTL: 15 * time.Minute,
		MaxClockAhead: 24 * time.Hour, // the clocks of nodes may be hours apart
		Load:          load{Flows: 200 + r.IntN(400), Interval: c.interval, MixedLoad: &mixedLoad{Seed: seed, Shared: 20 + r.IntN(200)}},
	}
	p.Map.Entries = 1 << 14
	switch r.IntN(4) {
	case 0: // some writes evict other entries
		p.Map = mapSettings{LRU: true, Entries: 1024}
		p.EvictionDeletes = r.IntN(2) == 0
	case 1, 2:
		p.BufferSize = 4096 // overflows continuously
	}
	if p.BufferSize > 4096 && c.hooks && r.IntN(2) == 0 {
		p.Buffer, p.BufferSize = "perf", 64 // pages per CPU
	}
	p.addStableFlows(c)
	for range p.Nodes {
		p.Ahead = append(p.Ahead, randomClock(r))
	}
	victim := r.IntN(2*p.Nodes) - p.Nodes // below 0: any node may be killed
	for range 2 + r.IntN(7) {
		f := p.fault(r, c)
		if f.Kind == faultKill && victim >= 0 {
			f.Node = victim
		}
		p.Faults = append(p.Faults, f)
	}
	p.addExtraMembers(c)
	p.addSteps(c)
	p.addLinks(c)
	killed := func(f fault) bool { return f.Kind == faultKill }
	// A delete must not expire before a node that was away has returned.
	if r.IntN(2) == 0 && !slices.ContainsFunc(p.Faults, killed) {
		p.TombstoneTTL = 2 * c.unit
	}
	return p
}

// addStableFlows adds flows that all maps must keep, so few that a clear of all others would still count as one.
func (p *plan) addStableFlows(c chaosScale) {
	if !p.Map.LRU { // such a map may evict any entry
		p.Load.Stable = stableLoad{Flows: 6, Nodes: p.Nodes, Period: 6 * c.unit, Reading: 2 * c.interval}
	}
}

// addExtraMembers adds extra members, and pressure on an LRU map. It has a separate random source,
// so that it does not change the rest of the plan.
func (p *plan) addExtraMembers(c chaosScale) {
	if c.names == 0 {
		return
	}
	r := rand.New(rand.NewPCG(p.Seed, 0x677565737473))
	if p.Map.LRU && r.IntN(2) == 0 { // most writes evict other entries
		p.Map.Entries = 256
	}
	if r.IntN(4) == 0 {
		p.Incompatible = append(p.Incompatible, mapSettings{ValueSize: valueSize - 16, Entries: 1024})
	}
	if r.IntN(4) == 0 {
		p.Incompatible = append(p.Incompatible, mapSettings{Name: "other", Entries: 1024})
	}
	if c.hooks {
		p.Incompatible = p.Incompatible[:min(len(p.Incompatible), c.most-p.Nodes)]
	}
	if r.IntN(3) == 0 {
		f := fault{Kind: faultHostile, At: time.Duration(r.Int64N(int64(p.Length / 2))), Ahead: randomClock(r), Abrupt: r.IntN(2) == 0}
		f.Until = p.Length/2 + time.Duration(r.Int64N(int64(p.Length/2)))
		p.Faults = append(p.Faults, f)
	}
	if r.IntN(5) == 0 {
		p.Length *= 3
		p.Faults = append(p.Faults, fault{Kind: faultChurn, Until: p.Length, Names: c.names, AtOnce: c.atOnce})
	}
}

// maxAheadOfSteps is max-clock-ahead of plans with steps. All clocks are within a fifth of it, except for those that are
// stepped by two to twenty times as much.
const maxAheadOfSteps = time.Minute

// addSteps makes nodes filter records in half of the plans, with a separate random source: clocks are close, and those of
// single nodes are wrong for a while.
func (p *plan) addSteps(c chaosScale) {
	r := rand.New(rand.NewPCG(p.Seed, 0x7374657073))
	if r.IntN(2) == 0 {
		return
	}
	p.MaxClockAhead = maxAheadOfSteps
	p.Length *= 2
	for i := range p.Ahead {
		p.Ahead[i] /= 300
	}
	// Those of all nodes together, too: a change of another node's record that is too far ahead is refused until the clocks have
	// reached it.
	for i := range p.Faults {
		p.Faults[i].Ahead /= 300
	}
	// One node: while two nodes are wrong, they may accept versions that all others refuse for that time.
	wrong := r.IntN(p.Nodes)
	for range 1 + r.IntN(3) {
		f := fault{Kind: faultStep, At: time.Duration(r.Int64N(int64(p.Length))), Node: wrong}
		f.Until = min(f.At+c.unit/10+time.Duration(r.Int64N(int64(6*c.unit))), p.Length)
		f.Ahead = time.Duration(2+r.Int64N(18)) * maxAheadOfSteps
		if r.IntN(2) == 0 {
			f.Ahead = -f.Ahead
		}
		p.Faults = append(p.Faults, f)
	}
}

// addLinks makes entries name an interface in some plans, with a separate random source. Nodes filter these entries while
// they lack it. Extra members send entries of the layout without an interface.
func (p *plan) addLinks(c chaosScale) {
	r := rand.New(rand.NewPCG(p.Seed, 0x6c696e6b73))
	member := func(f fault) bool { return f.Kind == faultHostile || f.Kind == faultChurn }
	if r.IntN(2) == 0 || p.Map.LRU || slices.ContainsFunc(p.Faults, member) {
		return
	}
	p.Map.Links = true
	p.Length = max(p.Length, 10*c.unit) // several comparisons of digests
	for range 2 + r.IntN(3) {
		f := fault{Kind: faultLink, At: time.Duration(r.Int64N(int64(p.Length))), Node: r.IntN(p.Nodes)}
		f.Until = min(f.At+c.unit/10+time.Duration(r.Int64N(int64(6*c.unit))), p.Length)
		p.Faults = append(p.Faults, f)
	}
}

func randomClock(r *rand.Rand) time.Duration {
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
		f.Ahead = randomClock(r)
	case faultClock:
		f.Ahead = randomClock(r) * 5 / 6 // certificates are valid from an hour ago
	case faultCut:
		f.Cut = p.randomCut(r)
	}
	return f
}

// randomCut returns a partition into two, or some single directions.
func (p *plan) randomCut(r *rand.Rand) (cut []direction) {
	half := 1 + r.IntN(1<<p.Nodes-2) // one bit per node, neither none nor all
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

// isContentKnown reports whether the result of the data planes' writes is predictable. This needs,
// for every write, a surviving node that has received it and has not just restarted. If all nodes
// that have an entry restart at about the same time, each finds its own version in its map, and no
// node can determine the newest one. A new map that does not fit that of a peer has no identity: an entry that ends while syncd
// is stopped comes back.
func (p *plan) isContentKnown() bool {
	killed := make(map[int]bool)
	for _, f := range p.Faults {
		if f.Kind == faultKill {
			killed[f.Node] = true
		}
	}
	misfit := slices.ContainsFunc(p.Incompatible, func(m mapSettings) bool { return m.Name == "" })
	return len(killed) < 2 && (len(killed) == 0 || !misfit)
}

func (p *plan) String() string {
	var b strings.Builder
	kind := "hash"
	if p.Map.LRU {
		kind = fmt.Sprintf("lru, eviction-deletes %v", p.EvictionDeletes)
	}
	for i := range p.Incompatible {
		kind += fmt.Sprintf(", with a node whose map is %q of %d bytes", cmp.Or(p.Incompatible[i].Name, "ct"), cmp.Or(p.Incompatible[i].ValueSize, valueSize))
	}
	fmt.Fprintf(&b, "seed %d: %d nodes, map of %d entries (%s), %s buffer of %d, tombstones for %v, %d own flows and %d shared, clocks %v ahead, at most %v",
		p.Seed, p.Nodes, p.Map.Entries, kind, p.Buffer, p.BufferSize, p.TombstoneTTL, p.Load.Flows, p.Load.MixedLoad.Shared, p.Ahead, p.MaxClockAhead)
	for i := range p.Faults {
		fmt.Fprintf(&b, "\n    %s", &p.Faults[i])
	}
	return b.String()
}

func TestPlansAreDeterministic(t *testing.T) {
	c := chaosScale{most: 5, unit: time.Second, interval: time.Millisecond, hooks: true, names: 300, atOnce: 16}
	seen := make(map[faultKind]int)
	misfits := make(map[mapSettings]int)
	contentKnown := 0
	for seed := range uint64(200) {
		p := newPlan(seed, c)
		if again := newPlan(seed, c); !reflect.DeepEqual(p, again) {
			t.Fatalf("newPlan with seed %d: got two different plans, want equal ones:\n%v\n%v", seed, p, again)
		}
		if p.isContentKnown() {
			contentKnown++
		}
		for _, m := range p.Incompatible {
			misfits[m]++
		}
		if p.Nodes+len(p.Incompatible) > c.most {
			t.Errorf("seed %d: got %d nodes and %d incompatible nodes, want at most %d in total", seed, p.Nodes, len(p.Incompatible), c.most)
		}
		for _, f := range p.Faults {
			seen[f.Kind]++
			if f.At < 0 || f.Until < f.At || f.Until > p.Length {
				t.Errorf("seed %d: got fault %v, want one within the time of the load", seed, &f)
			}
		}
	}
	if contentKnown < 100 {
		t.Errorf("plans with known content: got %d of 200, want at least 100", contentKnown)
	}
	for _, k := range []faultKind{faultKill, faultStop, faultCut, faultStarve, faultClock, faultStep, faultLink, faultHostile, faultChurn} {
		if seen[k] == 0 {
			t.Errorf("faults of kind %s: got none in 200 plans, want some", k)
		}
	}
	if len(misfits) != 2 {
		t.Errorf("incompatible maps of 200 plans: got %v, want one with another layout and one with another name", misfits)
	}
}
