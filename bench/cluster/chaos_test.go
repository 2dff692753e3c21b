package cluster

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/daemon"

	"golang.org/x/sys/unix"
)

var (
	chaosSeeds = flag.Int("chaos.seeds", 0, "chaos runs, each with the next seed and perhaps with extra members; 0: a few, without extra members in an emulated machine")
	chaosFirst = flag.Uint64("chaos.first", 0, "first seed; 0: random")
)

// TestChaos makes data planes change maps in every possible way while nodes are killed, stopped,
// starved and cut off from each other. Clocks are hours apart, and buffers overflow. Soon after the
// end of the load, all digests must agree, and all tables and kernel maps must have the same
// content. Unless several nodes were killed, entries with a single writer must have the last value
// of that writer. A kernel map that is not an LRU map must keep the flows that no load balancer
// deletes, at each reading.
//
// To repeat one run: go -C bench test ./cluster -run TestChaos -v -chaos.first SEED -chaos.seeds 1
func TestChaos(t *testing.T) {
	if os.Getenv(inMachine) == "" {
		native := chaosScale{most: 5, unit: 500 * time.Millisecond, interval: 10 * time.Millisecond, scan: 500 * time.Millisecond, names: 300, atOnce: 16}
		eachSeed(t, *chaosFirst, cmp.Or(*chaosSeeds, 6), native, capture.AttachAuto)
		return
	}
	// Two emulated processors cannot process the changes of five nodes that send everything to each
	// other. The lag at the end of the load would then depend only on the machine. The same applies
	// to the TLS handshakes of many names at once.
	emulated := chaosScale{most: 4, unit: 2 * time.Second, interval: 100 * time.Millisecond, scan: time.Second, hooks: true, names: 40, atOnce: 4}
	onHooks(t, capture.AttachKprobe, func(t *testing.T, p place) {
		eachSeed(t, *chaosFirst, cmp.Or(*chaosSeeds, 1), emulated, p.(*processes).attach)
	})
}

func eachSeed(t *testing.T, first uint64, n int, c chaosScale, attach capture.Attach) {
	if first == 0 {
		first = 1 + rand.Uint64N(1<<40)
	}
	t.Logf("first seed %d", first)
	if *chaosSeeds == 0 && c.hooks {
		c.names = 0
	}
	for seed := first; seed < first+uint64(n); seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			p := newPlan(seed, c)
			t.Log(p)
			newChaos(t, p, c, attach).run()
		})
	}
}

// chaos is a running plan.
type chaos struct {
	*trial
	limit        time.Duration // in which all nodes must converge
	plan         *plan
	net          *namespaces
	extraMembers int   // number started so far
	kills        []int // number of kills of each syncd
	down         []bool
}

// refusedTime is the longest time until a change arrives that a peer refused, once the clocks are right.
const refusedTime = 10 * time.Second

// linkTime is the longest time until an entry arrives that a node filtered, once it has the interface.
const linkTime = 40 * time.Second

func newChaos(t *testing.T, p *plan, c chaosScale, attach capture.Attach) *chaos {
	n := newNamespaces(t, c.hooks)
	tr := newTrial(t, n, p.Nodes, p.Map, func(i int, r *startRequest) {
		if i < p.Nodes {
			r.ClockAhead = p.Ahead[i]
		}
		r.Config.Attach = string(attach)
		r.Config.Buffer, r.Config.BufferSize = p.Buffer, p.BufferSize
		r.Config.EvictionDeletes, r.Config.TombstoneTTL = p.EvictionDeletes, p.TombstoneTTL
		r.Config.DeadTime, r.Config.MaxClockAhead = 2*c.unit, p.MaxClockAhead
		r.Config.ScanInterval, r.Config.ScanBudget = c.scan, 50
		if p.Map.Links && i < p.Nodes {
			r.Config.Fields = []string{linkField}
		}
		r.Config.AllowUnservedMaps = len(p.Incompatible) > 0 // a peer with another layout must not delay readiness
	}, p.Incompatible...)
	limit := convergeLimit()
	if p.MaxClockAhead == maxAheadOfSteps {
		limit += refusedTime
	}
	if p.Map.Links {
		limit += linkTime
	}
	return &chaos{trial: tr, limit: limit, plan: p, net: n, kills: make([]int, p.Nodes), down: make([]bool, p.Nodes)}
}

func (c *chaos) run() {
	c.load(c.plan.Load)
	c.faults()
	c.eachPost("/unload")
	if !c.plan.Map.LRU {
		c.eventuallyAfterCatchUp(c.limit, c.checkInSync)
		c.stableStayed()
		return
	}
	// The flows of all nodes need more than an LRU map: each keeps those of its own data plane, and the tables refuse what
	// they have no room for. After all flows have been deleted and a few have been written again, every map has room for all.
	c.awaitCaughtUp()
	c.loadEach("/clear")
	c.eventuallyAfterCatchUp(4*c.limit, c.inSyncAnd(func(t content) error {
		if n := countFlows(t); n > 0 {
			return fmt.Errorf("%d entries after all flows have ended", n)
		}
		return nil
	}))
	// The entries of the extra members remain. The kernel evicts entries as soon as one CPU has
	// used its share of the map. Therefore a small map may lack room for all entries, too.
	c.plan.Map.LRU = c.extraMembers > 0 || c.plan.Map.Entries < 1024
	c.loadEach("/rewrite")
	c.eventuallyAfterCatchUp(c.limit, c.checkInSync)
}

func (c *chaos) loadEach(path string) {
	for _, n := range c.nodes {
		c.must(n.call(c.t.Context(), http.MethodPost, path, c.plan.Load, nil))
	}
}

// action is the start or the end of a fault.
type action struct {
	at time.Duration
	do func()
}

// faults runs all planned faults and returns after the last one has ended.
func (c *chaos) faults() {
	actions := []action{{c.plan.Length, func() {}}}
	for i := range c.plan.Faults {
		f := &c.plan.Faults[i]
		end := func() {}
		actions = append(actions,
			action{f.At, func() { end = c.begin(f) }},
			action{f.Until, func() { end() }})
	}
	slices.SortStableFunc(actions, func(a, b action) int { return cmp.Compare(a.at, b.at) })
	began := time.Now()
	for _, a := range actions {
		time.Sleep(a.at - time.Since(began)) // the plan has the time of each fault
		a.do()
	}
	c.attached()
}

// attached waits, under load, until each started syncd has its map. Under emulation the kernel
// takes seconds to search its programs.
func (c *chaos) attached() {
	var err error
	poll.Within(c.t, time.Minute, "each started syncd has its map", func() bool {
		var errs []error
		for _, n := range c.nodes {
			s, err := n.status(c.t.Context())
			if err == nil && s.Maps[0].State != daemon.MapSyncing && s.Maps[0].State != daemon.MapReplicating {
				err = fmt.Errorf("node %s has no map yet: %s", n.name, s.Maps[0].State)
			}
			errs = append(errs, err)
		}
		err = errors.Join(errs...)
		return err == nil
	}, func() any { return err })
}

// begin starts a fault and returns the function that ends it.
func (c *chaos) begin(f *fault) (end func()) {
	switch f.Kind {
	case faultKill:
		return c.killOne(f)
	case faultStop:
		return c.stopOne(f.Node)
	case faultCut:
		for _, d := range f.Cut {
			c.must(c.net.cut(d))
		}
		return func() {
			for _, d := range f.Cut {
				c.must(c.net.heal(d))
			}
		}
	case faultClock:
		c.setClock(f.Ahead)
		return func() { c.setClock(0) }
	case faultStep:
		return c.stepOne(f)
	case faultLink:
		c.must(c.net.removeLink(f.Node))
		return func() { c.must(c.net.restoreLink(f.Node)) }
	case faultHostile, faultChurn:
		return c.startExtraMember(f)
	default:
		return c.starve()
	}
}

func (c *chaos) killOne(f *fault) func() {
	i := f.Node
	if c.down[i] {
		return func() {}
	}
	c.post(i, "/kill")
	c.down[i] = true
	c.kills[i]++
	return func() {
		c.start[i].ClockAhead = f.Ahead
		c.syncd(i)
		c.down[i] = false
	}
}

// stepOne sets the wall clock of one syncd.
func (c *chaos) stepOne(f *fault) func() {
	kills := c.kills[f.Node]
	set := func(ahead time.Duration) {
		if !c.down[f.Node] && c.kills[f.Node] == kills {
			c.must(c.nodes[f.Node].call(c.t.Context(), http.MethodPost, "/ahead", ahead, nil))
		}
	}
	set(f.Ahead)
	return func() { set(c.start[f.Node].ClockAhead) }
}

func (c *chaos) stopOne(i int) func() {
	if c.down[i] {
		return func() {}
	}
	c.post(i, "/stop")
	kills := c.kills[i]
	return func() {
		if c.kills[i] == kills {
			c.post(i, "/continue")
		}
	}
}

// starve withholds the CPUs from every syncd.
func (c *chaos) starve() func() {
	kills := slices.Clone(c.kills)
	each := func(path string) {
		for i := range c.nodes {
			if !c.down[i] && kills[i] == c.kills[i] {
				c.post(i, path)
			}
		}
	}
	each("/starve")
	ctx, cancel := context.WithCancel(c.t.Context())
	var spinning sync.WaitGroup
	for range runtime.NumCPU() {
		spinning.Go(func() {
			for ctx.Err() == nil {
			}
		})
	}
	return func() {
		cancel()
		spinning.Wait()
		each("/unstarve")
	}
}

// clockOffset is the difference of the machine's wall clock to its monotonic clock before the first
// change of the wall clock, in ns.
var clockOffset = sync.OnceValue(func() int64 { return clock(unix.CLOCK_REALTIME) - clock(unix.CLOCK_MONOTONIC) })

func clock(id int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// setClock sets the wall clock of the machine, which is a virtual one.
func (c *chaos) setClock(ahead time.Duration) {
	ts := unix.NsecToTimespec(clockOffset() + clock(unix.CLOCK_MONOTONIC) + int64(ahead))
	c.must(unix.ClockSettime(unix.CLOCK_REALTIME, &ts))
}
