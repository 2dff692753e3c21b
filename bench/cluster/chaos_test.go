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

	"mapsync/syncd/capture"
	"mapsync/syncd/daemon"

	"golang.org/x/sys/unix"
)

var (
	chaosSeeds = flag.Int("chaos.seeds", 0, "runs of chaos, each with the next seed and perhaps with guests; 0: a few, without guests in an emulated machine")
	chaosFirst = flag.Uint64("chaos.first", 0, "the first seed; 0: another one in each run")
)

// TestChaos lets data planes do all that can happen to a map while nodes are killed, stopped,
// starved and cut off from each other, with clocks hours apart and buffers that
// overflow. Soon after it is quiet, digests must agree, and so must all that any table and any
// kernel map holds; and unless several nodes were killed, what only one data plane wrote must be
// as it wrote it last.
//
// To see one run again: go test ./bench/cluster -run TestChaos -v -chaos.first SEED -chaos.seeds 1
func TestChaos(t *testing.T) {
	if os.Getenv(inMachine) == "" {
		native := chaosScale{most: 5, unit: 500 * time.Millisecond, interval: 10 * time.Millisecond, scan: 500 * time.Millisecond, names: 300, atOnce: 16}
		eachSeed(t, *chaosFirst, cmp.Or(*chaosSeeds, 6), native, capture.AttachAuto)
		return
	}
	// Five nodes that send each other all that they change are more than two emulated processors
	// get through with, and how far behind they are when it is quiet says nothing. So are the
	// handshakes of many names at once.
	emulated := chaosScale{most: 4, unit: 2 * time.Second, interval: 100 * time.Millisecond, scan: time.Second, hooks: true, names: 40, atOnce: 4}
	onHooks(t, func(t *testing.T, p place) {
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

// chaos is a run under way.
type chaos struct {
	*trial
	limit  time.Duration // in which all must be equal
	plan   *plan
	net    *namespaces
	guests int   // started so far
	lives  []int // how often each syncd was killed
	down   []bool
}

func newChaos(t *testing.T, p *plan, c chaosScale, attach capture.Attach) *chaos {
	n := newNamespaces(t, c.hooks)
	tr := newTrial(t, n, p.Nodes, p.Map, func(i int, r *startRequest) {
		if i < p.Nodes {
			r.ClockAhead = p.Ahead[i]
		}
		r.Config.Attach = string(attach)
		r.Config.Buffer, r.Config.BufferSize = p.Buffer, p.BufferSize
		r.Config.EvictionDeletes, r.Config.TombstoneTTL = p.EvictionDeletes, p.TombstoneTTL
		r.Config.DeadTime, r.Config.MaxClockAhead = 2*c.unit, 24*time.Hour // clocks are hours apart
		r.Config.ScanInterval, r.Config.ScanBudget = c.scan, 50
		r.Config.AllowUnservedMaps = len(p.Misfits) > 0 // a peer of another layout is no reason to wait
	}, p.Misfits...)
	return &chaos{trial: tr, limit: settleLimit(), plan: p, net: n, lives: make([]int, p.Nodes), down: make([]bool, p.Nodes)}
}

func (c *chaos) run() {
	c.load(c.plan.Load)
	c.faults()
	c.eachPost("/unload")
	if !c.plan.Map.LRU {
		c.settles(c.limit, c.agree)
		return
	}
	// What the kernel threw out of one map need not be missing in another, nor deleted. Once
	// all flows have ended and a few have begun anew there is room for all.
	c.settles(c.limit, c.agreeOn(func(content) error { return nil }))
	c.loadEach("/clear")
	c.settles(4*c.limit, c.agreeOn(func(t content) error {
		if n := flows(t); n > 0 {
			return fmt.Errorf("%d entries after all flows have ended", n)
		}
		return nil
	}))
	// What guests wrote stays. The kernel evicts entries as soon as one CPU has used up its share of
	// the map: a small one need not have room for all either.
	c.plan.Map.LRU = c.guests > 0 || c.plan.Map.Entries < 1024
	c.loadEach("/rewrite")
	c.settles(c.limit, c.agree)
}

func (c *chaos) loadEach(path string) {
	for _, n := range c.nodes {
		c.must(n.call(c.t.Context(), http.MethodPost, path, c.plan.Load, nil))
	}
}

// action is the beginning or the end of a fault.
type action struct {
	at time.Duration
	do func()
}

// faults lets everything go wrong that is planned, and returns when all is whole again.
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
		time.Sleep(a.at - time.Since(began))
		a.do()
	}
	c.attached()
}

// attached waits, under load, until each syncd that was started has its map: under emulation
// the kernel takes seconds to look through its programs.
func (c *chaos) attached() {
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var errs []error
		for _, n := range c.nodes {
			s, err := n.status(c.t.Context())
			if err == nil && s.Maps[0].State != daemon.MapSyncing && s.Maps[0].State != daemon.MapReplicating {
				err = fmt.Errorf("node %s has no map yet: %s", n.name, s.Maps[0].State)
			}
			errs = append(errs, err)
		}
		err := errors.Join(errs...)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			c.t.Fatal(err)
		}
	}
}

// begin makes a fault and returns what ends it.
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
	case faultHostile, faultCrowd:
		return c.guest(f)
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
	c.lives[i]++
	return func() {
		c.start[i].ClockAhead = f.Ahead
		c.syncd(i)
		c.down[i] = false
	}
}

func (c *chaos) stopOne(i int) func() {
	if c.down[i] {
		return func() {}
	}
	c.post(i, "/stop")
	life := c.lives[i]
	return func() {
		if c.lives[i] == life {
			c.post(i, "/continue")
		}
	}
}

// starve takes the CPUs away from every syncd.
func (c *chaos) starve() func() {
	lives := slices.Clone(c.lives)
	each := func(path string) {
		for i := range c.nodes {
			if !c.down[i] && lives[i] == c.lives[i] {
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
		each("/feed")
	}
}

// clockWas is the machine's wall clock less its monotonic one before it was ever set.
var clockWas = sync.OnceValue(func() int64 { return clock(unix.CLOCK_REALTIME) - clock(unix.CLOCK_MONOTONIC) })

func clock(id int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// setClock sets the machine's wall clock: a virtual one's.
func (c *chaos) setClock(ahead time.Duration) {
	ts := unix.NsecToTimespec(clockWas() + clock(unix.CLOCK_MONOTONIC) + int64(ahead))
	c.must(unix.ClockSettime(unix.CLOCK_REALTIME, &ts))
}
