package table

import (
	"flag"
	"fmt"
	"hash/maphash"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	exploreSteps = flag.Int("explore.steps", 0, "steps of TestExplore's courses with 2 nodes, 3 having 2 less; 0: a few")
	exploreOnly  = flag.String("explore.only", "", "the one cluster that TestExplore explores; empty: all")
)

const (
	exploreStepsByDefault = 4
	exploreStepsIfShort   = 3
)

const micro, milli = int64(time.Microsecond), int64(time.Millisecond)

// exploreConfs are the clusters that are explored. Steps take so little time that all happens
// at one moment, or longer than a moment but not than buffers are out of order, or longer than that.
var exploreConfs = []exploreConf{
	{name: "one/start", nodes: 1, home: 0, step: 10 * micro, start: true, fresh: true, less: -3},
	{name: "two", nodes: 2, home: 0, step: 10 * milli, scans: true, crash: true},
	{name: "two/fresh", nodes: 2, home: 0, step: 10 * milli, scans: true, crash: true, fresh: true},
	{name: "two/moment", nodes: 2, home: 0, step: 10 * micro, scans: true},
	{name: "two/disorder", nodes: 2, home: 0, step: 2 * milli},
	{name: "two/hooks", nodes: 2, home: 0, step: 10 * micro, crash: true, fresh: true},
	{name: "two/shared", nodes: 2, home: -1, step: 10 * micro, less: 1},
	{name: "two/skewed", nodes: 2, home: 0, step: 10 * milli, ahead: int64(time.Hour), crash: true},
	{name: "two/lost", nodes: 2, home: 0, step: 10 * milli, crash: true, lost: true},
	{name: "two/evict", nodes: 2, home: 0, step: 10 * micro, evict: true},
	{name: "two/start", nodes: 2, home: 0, step: 10 * micro, start: true, fresh: true},
	{name: "two/coarse", nodes: 2, home: 0, step: 10 * micro, scans: true, crash: true, coarse: true},
	{name: "two/coarse/tick", nodes: 2, home: 0, step: micro, tick: 10 * milli, scans: true, keys: true, coarse: true},
	{
		name: "two/coarse/reread", nodes: 2, home: 0, step: micro, tick: 10 * milli, scans: true, keys: true, coarse: true,
		only: []exploreAction{actChange, actEvent, actSend, actWork, actScan}, less: -4,
	},
	{
		name: "two/coarse/race", nodes: 2, home: -1, step: 10 * micro, coarse: true,
		only: []exploreAction{actWrite, actChange, actEvent, actSend, actWork},
	},
	{name: "two/coarse/shared", nodes: 2, home: -1, step: 10 * micro, scans: true, coarse: true, less: 1},
	{name: "two/coarse/hooks", nodes: 2, home: -1, step: 10 * micro, coarse: true, less: 1},
	{name: "two/coarse/evict", nodes: 2, home: -1, step: 10 * micro, evict: true, coarse: true},
	{name: "two/dead", nodes: 2, home: 0, step: 10 * milli, scans: true, crash: true, dead: true},
	{name: "two/dead/moment", nodes: 2, home: -1, step: 10 * micro, scans: true, dead: true},
	{name: "two/dead/start", nodes: 2, home: 0, step: 10 * micro, start: true, dead: true},
	{name: "two/coarse/dead", nodes: 2, home: -1, step: 10 * micro, scans: true, crash: true, coarse: true, dead: true, less: 1},
	{name: "three/dead", nodes: 3, home: -1, step: 10 * milli, dead: true},
	{name: "three", nodes: 3, home: 0, step: 10 * milli, crash: true},
	{name: "three/moment", nodes: 3, home: 0, step: 10 * micro, scans: true},
	{name: "three/shared", nodes: 3, home: -1, step: 10 * micro},
	{name: "three/bare", nodes: 3, home: 0, step: 10 * milli, crash: true, lost: true, coarse: true, bare: 1},
	{name: "three/coarse", nodes: 3, home: 0, step: 10 * milli, crash: true, coarse: true},
}

// TestExplore drives the tables of a few nodes and one key through every course of a
// number of steps, and demands of each state that they come to that all is right once it has
// come to rest: tables equal, maps as tables say, no deleted key back, and nothing written
// over what its own load balancer wrote last. No state is visited twice. More steps:
//
//	go test ./syncd/table -run TestExplore -explore.steps 10 -timeout 0 -v
func TestExplore(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	for i := range exploreConfs {
		c := &exploreConfs[i]
		steps := exploreStepsByDefault
		switch {
		case *exploreSteps > 0:
			steps = *exploreSteps
		case testing.Short():
			steps = exploreStepsIfShort
		}
		if c.nodes > 2 {
			steps -= 2
		}
		steps -= c.less
		if *exploreOnly != "" && *exploreOnly != c.name {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			began := time.Now()
			e := &exploration{conf: c, seed: maphash.MakeSeed(), seen: make(map[uint64]struct{})}
			err := e.run(t, steps)
			t.Logf("%d steps: %d states, %d transitions in %.1fs", e.depth, len(e.seen), e.transitions.Load(), time.Since(began).Seconds())
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// exploration is the search through one cluster's states, one step deeper at a time.
type exploration struct {
	conf        *exploreConf
	seed        maphash.Seed
	depth       int
	transitions atomic.Int64

	mu   sync.Mutex
	seen map[uint64]struct{}
	next []course // those that led to states not seen before
	err  error
}

// course is what happened so far.
type course []exploreAction

func (c course) String() string {
	var b strings.Builder
	for _, a := range c {
		fmt.Fprintf(&b, "\n\t%s", a)
	}
	return b.String()
}

func (e *exploration) run(t *testing.T, steps int) error {
	e.explorer(t).try(nil)
	for e.depth = 0; e.depth < steps && e.err == nil; e.depth++ {
		level := e.next
		e.next = nil
		var at atomic.Int64
		var wg sync.WaitGroup
		for range runtime.GOMAXPROCS(0) {
			wg.Go(func() {
				x := e.explorer(t)
				for i := at.Add(1) - 1; i < int64(len(level)) && !x.over(); i = at.Add(1) - 1 {
					x.expand(level[i])
				}
			})
		}
		wg.Wait()
	}
	return e.err
}

// explorer is one of the threads of an exploration.
type explorer struct {
	*exploration
	t      *testing.T
	tables simTables
	state  exploreState
	todo   []exploreAction
}

func (e *exploration) explorer(t *testing.T) *explorer { return &explorer{exploration: e, t: t} }

func (x *explorer) over() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err != nil
}

// expand tries each next step of a course.
func (x *explorer) expand(c course) {
	w := x.replay(c)
	x.todo = w.can(x.todo[:0])
	for i, a := range x.todo {
		if i > 0 {
			w = x.replay(c)
		}
		w.do(a)
		x.transitions.Add(1)
		x.visit(w, c, a)
	}
}

// try visits the state at the end of a course.
func (x *explorer) try(c course) { x.visit(x.replay(c), c) }

func (x *explorer) replay(c course) *exploreWorld {
	x.tables.release()
	w := newExploreWorld(x.t, x.conf, &x.tables)
	for _, a := range c {
		w.do(a)
	}
	return w
}

// visit looks at a state, unless it was seen before.
func (x *explorer) visit(w *exploreWorld, c course, more ...exploreAction) {
	if w.err == nil {
		x.state.add(w)
		if !x.isNew(x.state.sum(x.seed, x.conf.step)) {
			return
		}
		for _, n := range w.up() {
			checkInvariants(w, n.d.tab)
		}
	}
	all := append(c[:len(c):len(c)], more...)
	err := w.err
	if err == nil {
		err = w.judge()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if err != nil && x.err == nil {
		x.err = fmt.Errorf("%w after%s", err, all)
	}
	x.next = append(x.next, all)
}

func (x *explorer) isNew(sum uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, seen := x.seen[sum]
	x.seen[sum] = struct{}{}
	return !seen
}
