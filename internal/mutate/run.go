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

// Options selects the mutants to try and configures the run.
type Options struct {
	// Package is a pattern of the go command that matches one package.
	Package string
	// Sample is the number of mutants to try; 0 means all.
	Sample int
	// Seed determines the sample.
	Seed uint64
	// Files restricts the mutants to those whose file and function match, as in
	// "evict.go:(*Tx).Evicted". nil means all.
	Files *regexp.Regexp
	// Parallel is the number of mutants tried at the same time, at least 1.
	Parallel int
	// Limit is the maximum duration of a test without a mutant. Slower tests are not used, and neither
	// are tests that take a minute or longer.
	Limit time.Duration
	// StateDir stores results, so that a later run can continue an earlier one.
	StateDir string
	// Fresh discards the results of earlier runs.
	Fresh bool
	Log   *slog.Logger
}

// Report is the result of a run.
type Report struct {
	Package    string
	Mutants    int // in the package, without the equivalent ones
	Equivalent int // on the package's list
	Tried      int
	Killed     int
	Survivors  []Survivor // in the order of files and lines
	Failing    string     // tests that fail without a mutant and were not used
	UnusedKeys []string   // keys on the package's list that match no mutant
}

// Survivor is a mutant that no test detects.
type Survivor struct {
	Mutant
	Reached int    // number of tests that reach it
	Reason  string // from the package's list: why the survivor is accepted
}

// Score returns the share of the tried mutants that a test detects, from 0 to 1.
func (r *Report) Score() float64 { return float64(r.Killed) / float64(max(r.Tried, 1)) }

// runner tries mutants.
type runner struct {
	o       *Options
	p       *program
	results *savedResults
	tests   []test // usable tests, fastest first
}

// Run tries the mutants of a package.
func Run(o Options) (_ *Report, err error) {
	s, err := load(o.Package)
	if err != nil {
		return nil, err
	}
	list, err := readExemptions(s.dir)
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
	st, err := openResults(s, o.StateDir, o.Fresh)
	if err != nil {
		return nil, err
	}
	defer st.close()
	o.Log.Info("recording tests", "package", s.path, "mutants", len(p.mutants))
	tests, err := st.tests(func() ([]test, error) { return p.record(work, time.Minute, min(o.Parallel, 4)) })
	if err != nil {
		return nil, err
	}
	r := &runner{o: &o, p: p, results: st}
	r.tests = slices.DeleteFunc(slices.Clone(tests), func(t test) bool { return t.Failed || t.Took > o.Limit })
	slices.SortStableFunc(r.tests, func(a, b test) int { return cmp.Compare(a.Took, b.Took) })
	report, chosen := r.choose(list)
	report.Failing, report.UnusedKeys = failing(tests), list.unused(p.mutants)
	return report, r.tryAll(report, chosen, list)
}

// choose returns the mutants to try.
func (r *runner) choose(list exemptions) (*Report, []Mutant) {
	report := &Report{Package: r.p.source.path}
	var chosen []Mutant
	for _, m := range r.p.mutants {
		if list.get(&m).equivalent {
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

// tryAll tries mutants in parallel and completes the report.
func (r *runner) tryAll(report *Report, mutants []Mutant, list exemptions) error {
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
					report.Survivors = append(report.Survivors, Survivor{m, o.Reached, list.get(&m).reason})
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

// maxGroupTime is the maximum total duration of tests that run together.
const maxGroupTime = time.Second

// try runs the tests that reach a mutant until one fails. It starts with the test that detected the
// mutant in an earlier version of the package. The others follow, fastest first.
func (r *runner) try(m *Mutant) (outcome, error) {
	if o, ok := r.results.get(m.Key()); ok {
		return o, nil
	}
	o := outcome{Key: m.Key()}
	for _, group := range r.groups(m, r.results.killer(o.Key)) {
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
			o.Killed, o.By, o.Slow = true, failed, time.Since(begun) > maxGroupTime+group.took
		}
	}
	return o, r.results.put(o)
}

// testGroup is a group of tests that run together.
type testGroup struct {
	names []string
	took  time.Duration
}

// groups returns the tests that reach a mutant, in the order in which they run.
func (r *runner) groups(m *Mutant, first string) (all []testGroup) {
	var next testGroup
	for i := range r.tests {
		switch t := &r.tests[i]; {
		case !t.reaches(m.ID):
		case t.Name == first:
			all = slices.Insert(all, 0, testGroup{[]string{t.Name}, t.Took})
		default:
			if next.took+t.Took > maxGroupTime && len(next.names) > 0 {
				all, next = append(all, next), testGroup{}
			}
			next = testGroup{append(next.names, t.Name), next.took + t.Took}
		}
	}
	if len(next.names) > 0 {
		all = append(all, next)
	}
	return all
}
