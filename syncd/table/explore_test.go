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
	exploreSteps = flag.Int("explore.steps", 0, "length of the action sequences of TestExplore with 2 nodes (2 less with 3 nodes); 0: short")
	exploreOnly  = flag.String("explore.only", "", "name of the only cluster that TestExplore explores; empty: all")
)

const (
	exploreStepsByDefault = 4
	exploreStepsIfShort   = 3
)

const micro, milli = int64(time.Microsecond), int64(time.Millisecond)

// exploreConfs are the clusters that TestExplore explores. A step is so short that all events have
// about the same time, or longer than timestampMargin but shorter than simDisorder, or longer than
// both.
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

// TestExplore drives the tables of a few nodes and one key through every action sequence of a given
// length. It lets each state that it reaches come to rest and then checks it. The tables must be
// equal, and the maps must match the tables. No deleted key may return, and syncd may not overwrite
// the last write of its own load balancer. TestExplore visits each state once. To explore more steps:
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

// exploration is the search through the states of one cluster. Each round searches one step deeper.
type exploration struct {
	conf        *exploreConf
	seed        maphash.Seed
	depth       int
	transitions atomic.Int64

	mu   sync.Mutex
	seen map[uint64]struct{}
	next []actionPath // the paths that led to new states
	err  error
}

// actionPath is the sequence of actions so far.
type actionPath []exploreAction

func (c actionPath) String() string {
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

// explorer is one thread of an exploration.
type explorer struct {
	*exploration
	t      *testing.T
	tables *simTables
	state  exploreState
	todo   []exploreAction
}

func (e *exploration) explorer(t *testing.T) *explorer {
	return &explorer{exploration: e, t: t, tables: newTables(Internals{})}
}

func (x *explorer) over() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err != nil
}

// expand tries each possible next action of a path.
func (x *explorer) expand(c actionPath) {
	w := x.replay(c)
	x.todo = w.nextActions(x.todo[:0])
	for i, a := range x.todo {
		if i > 0 {
			w = x.replay(c)
		}
		w.do(a)
		x.transitions.Add(1)
		x.visit(w, c, a)
	}
}

// try visits the state at the end of a path.
func (x *explorer) try(c actionPath) { x.visit(x.replay(c), c) }

func (x *explorer) replay(c actionPath) *exploreWorld {
	x.tables.release()
	w := newExploreWorld(x.t, x.conf, x.tables)
	for _, a := range c {
		w.do(a)
	}
	return w
}

// visit checks a state that was not visited before.
func (x *explorer) visit(w *exploreWorld, c actionPath, more ...exploreAction) {
	if w.err == nil {
		x.state.add(w)
		if !x.isNew(x.state.sum(x.seed, x.conf.step)) {
			return
		}
		for _, n := range w.up() {
			n.d.internals().Check(w, n.d.tab)
		}
	}
	all := append(c[:len(c):len(c)], more...)
	err := w.err
	if err == nil {
		err = w.verify()
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
