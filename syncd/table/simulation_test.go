package table

import (
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	simSeeds = flag.Int("sim.seeds", 0, "number of seeds that TestSimulation runs; 0: default")
	simFirst = flag.Uint64("sim.first", 0, "first seed of TestSimulation; 0: random")
	simSums  = flag.Bool("sim.sums", false, "print a checksum of the steps of each seed of TestSimulation")
)

const (
	simSeedsByDefault = 1000
	simSeedsIfShort   = 150
)

// TestSimulation runs clusters of 2 to 16 nodes through random work and faults, and then checks the
// final state. The tables must be equal, the maps must match the tables, and the digests must be
// equal. The keys of a single load balancer must have the values that it wrote last. The course of a
// run depends only on its seed:
//
//	go test ./syncd/table -run TestSimulation -sim.seeds 100000
//	go test ./syncd/table -run TestSimulation -sim.first 4711 -sim.seeds 1 -v
//
// The second command prints the steps of one run. Without -sim.first each run begins with another
// seed, which it prints.
func TestSimulation(t *testing.T) {
	n := *simSeeds
	switch {
	case n > 0:
	case testing.Short():
		n = simSeedsIfShort
	default:
		n = simSeedsByDefault
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	began, first := time.Now(), *simFirst
	if first == 0 {
		first = 1 + rand.Uint64N(1<<40)
	}
	t.Logf("first seed %d", first)
	all := runSeeds(t, first, n)
	t.Logf("%d seeds in %.1fs: %s", all.runs, time.Since(began).Seconds(), all.String())
}

// simTotals sums up the results of many runs.
type simTotals struct {
	runs, failed int

	nodes  [simMaxNodes + 1]int
	counts map[string]int
}

func (a *simTotals) add(r *simRun) {
	a.runs++
	a.nodes[len(r.nodes)]++
	for k := range r.keys {
		a.counts["keys "+r.model.strictness(k)]++
	}
	for _, n := range r.nodes {
		if n.d == nil {
			a.counts["dead"]++
			continue
		}
		if n.d.tab == nil {
			continue
		}
		st := n.d.tab.Stats()
		for name, n := range map[string]uint64{
			"restored": st.Restored, "evicted": st.Evictions, "evictions expired": st.EvictionsExpired, "displaced": st.Displaced, "swept": st.Swept,
			"refreshed": st.Refreshed, "expired": st.Expired, "acknowledged": st.Acknowledged, "replaced": st.Replaced, "repeated": st.DeletesResent, "expired early": st.ExpiredEarly, "scan found": st.ScanFound,
			"audits": st.Audits, "stale": st.LocalStale + st.RemoteStale, "refused writes": st.WriteFailed,
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

func (a *simTotals) String() string {
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

// runSeeds runs seeds on all processors. It stops after simFailures failures.
func runSeeds(t *testing.T, first uint64, n int) (all simTotals) {
	var next atomic.Uint64
	var mu sync.Mutex
	var wg sync.WaitGroup
	all.counts = make(map[string]int)
	for range min(runtime.GOMAXPROCS(0), n) {
		wg.Go(func() {
			tables := newTables(Internals{})
			for i := next.Add(1) - 1; i < uint64(n); i = next.Add(1) - 1 {
				r := newRun(t, first+i, tables)
				if n == 1 && testing.Verbose() {
					r.trace, r.notes = r.log, r.log
				}
				sum := fnv.New64a()
				if *simSums {
					r.out, r.trace, r.notes = sum, r.log, r.log
				}
				err := r.run()
				mu.Lock()
				if *simSums {
					fmt.Printf("seed %d: %016x, error %v\n", r.seed, sum.Sum64(), err)
				}
				if all.add(r); err != nil {
					all.failed++
					t.Errorf("seed %d, %d nodes: %v\ngo test ./syncd/table -run TestSimulation -sim.first %d -sim.seeds 1 -v",
						r.seed, len(r.nodes), err, r.seed)
				}
				if all.failed >= simFailures {
					next.Store(uint64(n))
				}
				mu.Unlock()
				tables.release()
			}
		})
	}
	wg.Wait()
	return all
}

// simFailures is the number of failing runs after which runSeeds stops.
const simFailures = 5

// simRun is one run: a cluster and the random steps applied to it.
type simRun struct {
	*sim
	seed   uint64
	rand   *rand.Rand
	config simConfig
	stats  map[string]int
	out    io.Writer // receives the steps
}

const simMaxNodes = 16

func (r *simRun) log(format string, args ...any) {
	at := time.Duration(r.now - simStart)
	fmt.Fprintf(r.out, "%14.6f  %s\n", at.Seconds(), fmt.Sprintf(format, args...))
}

func (r *simRun) chance(p float64) bool { return r.rand.Float64() < p }

// Helper and Fatalf implement the interface that checkInvariants requires.
func (r *simRun) Helper() {}

func (r *simRun) Fatalf(format string, args ...any) { panic(fmt.Errorf(format, args...)) }

// run executes the whole run.
func (r *simRun) run() (err error) {
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
	for _, n := range r.nodes {
		if r.chance(0.9) {
			n.start()
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
