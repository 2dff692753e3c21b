package tabletest

import (
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// SimulationOptions selects the runs of Simulate.
type SimulationOptions struct {
	// First is the seed of the first run. The seeds of the others follow. A failed run prints its seed,
	// with which it can be repeated.
	First uint64
	// Seeds is the number of runs.
	Seeds int
	// Failures is the number of failing runs after which Simulate stops. 0: maxFailures.
	Failures int
	// DeletesAny runs clusters with table.Options.DeletesAny.
	DeletesAny bool
	// Stops runs clusters whose daemons are also stopped cleanly: see table.Stop.
	Stops bool
	// Focus runs small clusters with few kinds of faults. Empty: all kinds.
	Focus Focus
	// Sums makes Simulate print a checksum of the steps of each run. Equal sums before and after a
	// change of this package show that the steps are the same.
	Sums bool
}

// Simulate runs one cluster per seed. It reports each failed run to t, and stops after maxFailures of
// them. A single run prints its steps if tests are verbose.
//
// Runs are independent and use all processors. Each processor reuses the memory of its tables. The
// result of a run does not depend on the others.
func Simulate(t *testing.T, in Internals, o SimulationOptions) {
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	began := time.Now()
	t.Logf("first seed %d", o.First)
	all := &totals{counts: make(map[string]int)}
	var next atomic.Uint64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), o.Seeds) {
		wg.Go(func() {
			tables := NewTables(in)
			for i := next.Add(1) - 1; i < uint64(o.Seeds); i = next.Add(1) - 1 {
				if !all.runSeed(t, newRun(t, o.First+i, &o, tables), &o) {
					// The other threads end after their present run.
					next.Store(uint64(o.Seeds))
				}
				tables.Release()
			}
		})
	}
	wg.Wait()
	t.Logf("%d seeds in %.1fs: %s", all.runs, time.Since(began).Seconds(), all.String())
}

// runSeed executes a run and adds its results. It returns false if no further run should begin. Any
// goroutine may call it. The error names the command that repeats the run.
func (a *totals) runSeed(t *testing.T, r *simulation, o *SimulationOptions) bool {
	sum := fnv.New64a()
	if o.Sums {
		r.printTo(sum)
	} else if o.Seeds == 1 && testing.Verbose() {
		r.printTo(os.Stdout)
	}
	err := r.run()
	a.mu.Lock()
	defer a.mu.Unlock()
	if o.Sums {
		fmt.Printf("seed %d: %016x, error %v\n", r.seed, sum.Sum64(), err)
	}
	if a.add(r); err != nil {
		a.failed++
		t.Errorf("seed %d, %d nodes: %v\ngo test ./syncd/table -run '^%s$' -sim.first %d -sim.seeds 1 -v",
			r.seed, len(r.Nodes), err, t.Name(), r.seed)
	}
	limit := maxFailures
	if o.Failures > 0 {
		limit = o.Failures
	}
	return a.failed < limit
}

// totals sums up the results of many runs. The counts show whether the runs reach the rules that they
// are meant to test.
type totals struct {
	mu           sync.Mutex // protects all fields
	runs, failed int
	nodes        [MaxNodes + 1]int // number of runs by number of nodes
	counts       map[string]int    // number of events by name
}

// add adds the results of a run. The caller holds a.mu.
func (a *totals) add(r *simulation) {
	a.runs++
	a.nodes[len(r.Nodes)]++
	for k := range r.keys {
		// A model that checks too few keys exactly would find nothing.
		a.counts["keys "+r.Model.strictness(k)]++
	}
	for _, n := range r.Nodes {
		if n.Daemon == nil {
			a.counts["dead"]++
			continue
		}
		if n.Daemon.tab == nil {
			continue
		}
		st := n.Daemon.tab.Stats()
		for name, n := range map[string]uint64{
			"restored": st.Restored, "evicted": st.Evictions, "evictions expired": st.EvictionsExpired, "displaced": st.Displaced, "swept": st.Swept,
			"refreshed": st.Refreshed, "expired": st.Expired, "acknowledged": st.Acknowledged, "replaced": st.Replaced, "repeated": st.DeletesResent, "expired early": st.ExpiredEarly, "scan found": st.ScanFound,
			"taken over expired": st.TakeoversExpired, "audits": st.Audits, "stale": st.LocalStale + st.RemoteStale, "refused writes": st.WriteFailed,
		} {
			a.counts[name] += int(n)
		}
	}
	a.counts["compacted"] += r.compacted
	a.counts["repaired"] += r.repaired
	for name, n := range r.stats {
		a.counts[name] += n
	}
}

// String returns the counts in one line, ordered by name.
func (a *totals) String() string {
	var b strings.Builder
	b.WriteString("nodes")
	for n, runs := range a.nodes {
		if runs > 0 {
			fmt.Fprintf(&b, " %d:%d", n, runs)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(a.counts)) {
		fmt.Fprintf(&b, ", %s %d", name, a.counts[name])
	}
	return b.String()
}

// maxFailures is the number of failing runs after which Simulate stops.
const maxFailures = 5

// simulation is one run: a cluster and the random steps applied to it.
//
// All random numbers of a run come from rand, in a fixed order. A run therefore depends on its seed
// alone, and no step may depend on the order of a Go map.
type simulation struct {
	*World
	seed   uint64     // selects the run
	rand   *rand.Rand // the only source of random numbers
	config config
	stats  map[string]int // number of faults by name
	out    io.Writer      // receives the steps
}

// MaxNodes is the maximum number of nodes of a run.
const MaxNodes = 16

// printTo prints the steps of the run to w.
func (r *simulation) printTo(w io.Writer) { r.out, r.trace, r.notes = w, r.log, r.log }

// log prints one line with the simulated time since the start, in seconds.
func (r *simulation) log(format string, args ...any) {
	at := time.Duration(r.Now - startTime)
	fmt.Fprintf(r.out, "%14.6f  %s\n", at.Seconds(), fmt.Sprintf(format, args...))
}

// chance returns true with a probability.
func (r *simulation) chance(p float64) bool { return r.rand.Float64() < p }

// Helper and Fatalf implement Checker.
func (r *simulation) Helper() {}

// Fatalf panics with an error, which run recovers and returns.
func (r *simulation) Fatalf(format string, args ...any) { panic(fmt.Errorf(format, args...)) }

// run executes the whole run and returns its first error: a violated invariant, a wrong write or delete,
// or a wrong final state. Panics of the runtime are not recovered, because they are faults of the
// program.
func (r *simulation) run() (err error) {
	defer func() {
		if p := recover(); p != nil {
			var ok bool
			if err, ok = p.(error); !ok {
				panic(p)
			}
			if _, ok := p.(runtime.Error); ok {
				panic(p)
			}
		}
	}()
	for _, n := range r.Nodes {
		if r.chance(0.9) {
			n.Start()
		}
	}
	for range r.config.steps {
		r.step()
		if r.err != nil {
			return r.err
		}
	}
	return r.finish()
}
