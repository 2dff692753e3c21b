package tabletest

import (
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

// Explore drives the tables of each cluster of exploreConfs through every action sequence of a length, each
// cluster in a subtest. Sequences with 3 nodes are 2 steps shorter. only is the name of the only cluster,
// empty for all.
//
// It is exhaustive where Simulate is random: every interleaving of the actions up to that length is
// covered, with all its races. The state space grows with each step, so the clusters have one key and
// few nodes.
func Explore(t *testing.T, in Internals, steps int, only string) {
	// Worlds are short-lived garbage, and the tables are reused.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	for i := range exploreConfs {
		c := &exploreConfs[i]
		if only != "" && only != c.name {
			continue
		}
		length := steps - c.less
		if c.nodes > 2 {
			length -= 2
		}
		t.Run(c.name, func(t *testing.T) {
			began := time.Now()
			e := &exploration{internals: in, conf: c, seed: maphash.MakeSeed(), seen: make(map[uint64]struct{})}
			err := e.run(t, length)
			t.Logf("%d steps: %d states, %d transitions in %.1fs", e.depth, len(e.seen), e.transitions.Load(), time.Since(began).Seconds())
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// exploration is the search through the states of one cluster. Each round searches one step deeper.
//
// The search is breadth first: a path that fails is one of the shortest. mu protects the fields below
// it. The threads share all others, of which only transitions changes during a round.
type exploration struct {
	internals   Internals
	conf        *exploreConf
	seed        maphash.Seed // of the hashes in seen
	depth       int          // steps of the current round
	transitions atomic.Int64 // actions tried so far

	mu   sync.Mutex
	seen map[uint64]struct{} // hashes of the visited states; a collision would hide a state
	next []actionPath        // the paths that led to new states
	err  error               // the first failure; it ends the search
}

// actionPath is the sequence of actions so far. Worlds cannot be copied, so a path is replayed from the
// beginning for each action that extends it.
type actionPath []exploreAction

// String returns one line for each action.
func (c actionPath) String() string {
	var b strings.Builder
	for _, a := range c {
		fmt.Fprintf(&b, "\n\t%s", a)
	}
	return b.String()
}

// run searches until all paths of a length were tried, or one has failed.
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

// explorer is one thread of an exploration. Each has tables of its own, so the threads share no world.
type explorer struct {
	*exploration
	t      *testing.T
	tables *Tables         // memory of the current world
	state  exploreState    // scratch space
	todo   []exploreAction // scratch space of expand
}

// explorer returns a thread of the exploration.
func (e *exploration) explorer(t *testing.T) *explorer {
	return &explorer{exploration: e, t: t, tables: NewTables(e.internals)}
}

// over reports whether a path has failed.
func (x *explorer) over() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err != nil
}

// expand tries each possible next action of a path. The first action continues the world that lists the
// actions.
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

// replay returns a new world after all actions of a path. It invalidates the former world of this
// thread.
func (x *explorer) replay(c actionPath) *exploreWorld {
	x.tables.Release()
	w := newExploreWorld(x.t, x.conf, x.tables)
	for _, a := range c {
		w.do(a)
	}
	return w
}

// visit checks a state that was not visited before. The check ends the world: it heals the cluster and
// lets it converge. A world that has failed already counts as new.
func (x *explorer) visit(w *exploreWorld, c actionPath, more ...exploreAction) {
	if w.err == nil {
		x.state.add(w)
		if !x.isNew(x.state.sum(x.seed, x.conf.step)) {
			return
		}
		for _, n := range w.Up() {
			n.Daemon.internals().Check(w, n.Daemon.tab)
		}
	}
	// The capacity is limited, because several paths share the beginning.
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

// isNew marks a state as visited, and reports whether it was not visited before.
func (x *explorer) isNew(sum uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	_, seen := x.seen[sum]
	x.seen[sum] = struct{}{}
	return !seen
}
