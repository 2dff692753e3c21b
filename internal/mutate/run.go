package mutate

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Options says which mutants to try, and how.
type Options struct {
	// Package is a pattern of the go command that matches one package.
	Package string
	// Sample is how many mutants are tried; 0: all.
	Sample int
	// Seed chooses which.
	Seed uint64
	// Files restricts the mutants to those whose file and function match, as in
	// "evict.go:(*Tx).Evicted"; nil: all.
	Files *regexp.Regexp
	// Parallel is how many are tried at a time, at least 1.
	Parallel int
	// Limit is how long a test may take without a mutant; longer ones are left out, and so are
	// all that take a minute.
	Limit time.Duration
	// StateDir keeps what was found, for a run that takes up another.
	StateDir string
	// Fresh forgets what was found in an earlier run.
	Fresh bool
	Log   *slog.Logger
}

// Report is the outcome of a run.
type Report struct {
	Package    string
	Mutants    int // in the package, the equivalent ones left out
	Equivalent int // on the package's list
	Tried      int
	Killed     int
	Survivors  []Survivor // in the order of files and lines
	Failing    string     // tests that fail without a mutant, and were not used
	Stale      []string   // keys on the package's list that no mutant has any more
}

// Survivor is a mutant that no test finds.
type Survivor struct {
	Mutant
	Reached int    // by how many tests
	Reason  string // of the package's list, why that is accepted
}

// Score returns the share of the mutants tried that a test finds.
func (r *Report) Score() float64 { return float64(r.Killed) / float64(max(r.Tried, 1)) }

// runner tries mutants.
type runner struct {
	o     *Options
	p     *program
	state *state
	tests []test // usable ones, quick ones first
}

// Run tries the mutants of a package.
func Run(o Options) (_ *Report, err error) {
	s, err := load(o.Package)
	if err != nil {
		return nil, err
	}
	list, err := readList(s.dir)
	if err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return nil, fmt.Errorf("create work directory: %w", err)
	}
	defer os.RemoveAll(work) //nolint:errcheck // temporary
	p, err := build(s, work)
	if err != nil {
		return nil, err
	}
	st, err := openState(s, o.StateDir, o.Fresh)
	if err != nil {
		return nil, err
	}
	defer st.close()
	o.Log.Info("recording tests", "package", s.path, "mutants", len(p.mutants))
	tests, err := st.tests(func() ([]test, error) { return p.record(work, time.Minute, min(o.Parallel, 4)) })
	if err != nil {
		return nil, err
	}
	r := &runner{o: &o, p: p, state: st}
	r.tests = slices.DeleteFunc(slices.Clone(tests), func(t test) bool { return t.Failed || t.Took > o.Limit })
	slices.SortStableFunc(r.tests, func(a, b test) int { return cmp.Compare(a.Took, b.Took) })
	report, chosen := r.choose(list)
	report.Failing, report.Stale = failing(tests), list.stale(p.mutants)
	return report, r.tryAll(report, chosen, list)
}

// choose returns the mutants to try.
func (r *runner) choose(list verdicts) (*Report, []Mutant) {
	report := &Report{Package: r.p.source.path}
	var chosen []Mutant
	for _, m := range r.p.mutants {
		if list.of(&m).equivalent {
			report.Equivalent++
			continue
		}
		report.Mutants++
		if r.o.Files == nil || r.o.Files.MatchString(m.File+":"+m.Func) {
			chosen = append(chosen, m)
		}
	}
	random := rand.New(rand.NewPCG(r.o.Seed, 0))
	random.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	if r.o.Sample > 0 {
		chosen = chosen[:min(r.o.Sample, len(chosen))]
	}
	return report, chosen
}

// tryAll tries mutants in parallel and fills in the report.
func (r *runner) tryAll(report *Report, mutants []Mutant, list verdicts) error {
	var (
		mu    sync.Mutex
		first error
		work  sync.WaitGroup
		queue = make(chan Mutant)
	)
	for range max(r.o.Parallel, 1) {
		work.Go(func() {
			for m := range queue {
				o, err := r.try(&m)
				mu.Lock()
				first = cmp.Or(first, err)
				report.Tried++
				if o.Killed {
					report.Killed++
				} else {
					report.Survivors = append(report.Survivors, Survivor{m, o.Reached, list.of(&m).reason})
				}
				if report.Tried%50 == 0 {
					r.o.Log.Info("tried", "package", report.Package, "mutants", report.Tried, "of", len(mutants), "killed", report.Killed)
				}
				mu.Unlock()
			}
		})
	}
	for _, m := range mutants {
		queue <- m
	}
	close(queue)
	work.Wait()
	slices.SortFunc(report.Survivors, func(a, b Survivor) int { return cmp.Compare(a.ID, b.ID) })
	return first
}

// Tests are run together while they take less than this in all.
const together = time.Second

// try runs the tests that reach a mutant until one fails: the one that found it in an earlier
// version of the package, then quick ones first.
func (r *runner) try(m *Mutant) (outcome, error) {
	if o, ok := r.state.get(m.Key()); ok {
		return o, nil
	}
	o := outcome{Key: m.Key()}
	for _, group := range r.groups(m, r.state.finder(o.Key)) {
		o.Reached += len(group.names)
		if o.Killed {
			continue
		}
		begun := time.Now()
		failed, passed, err := r.p.run(group.names, 3*time.Second+10*group.took, "MUTATE_ID="+strconv.Itoa(m.ID))
		if err != nil {
			return o, err
		}
		if !passed {
			o.Killed, o.By, o.Slow = true, failed, time.Since(begun) > together+group.took
		}
	}
	return o, r.state.put(o)
}

// group is tests that run together.
type group struct {
	names []string
	took  time.Duration
}

// groups returns the tests that reach a mutant, in the order in which they run.
func (r *runner) groups(m *Mutant, first string) (all []group) {
	var next group
	for i := range r.tests {
		switch t := &r.tests[i]; {
		case !t.reaches(m.ID):
		case t.Name == first:
			all = slices.Insert(all, 0, group{[]string{t.Name}, t.Took})
		default:
			if next.took+t.Took > together && len(next.names) > 0 {
				all, next = append(all, next), group{}
			}
			next = group{append(next.names, t.Name), next.took + t.Took}
		}
	}
	if len(next.names) > 0 {
		all = append(all, next)
	}
	return all
}
