package mutate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// test is the result of running one test without a mutant.
type test struct {
	Name    string        `json:"name"`
	Took    time.Duration `json:"took"`
	Failed  bool          `json:"failed,omitempty"`
	Reached []byte        `json:"reached"` // bit set, indexed by mutant ID
}

func (t *test) reaches(id int) bool { return id/8 < len(t.Reached) && t.Reached[id/8]&(1<<(id%8)) != 0 }

// record runs each test alone, at most parallel at a time, and records which mutants it reaches.
func (p *program) record(work string, limit time.Duration, parallel int) ([]test, error) {
	names, err := p.tests()
	if err != nil {
		return nil, err
	}
	tests := make([]test, len(names))
	errs := make([]error, len(names))
	var running sync.WaitGroup
	free := make(chan struct{}, max(parallel, 1))
	for i, name := range names {
		free <- struct{}{}
		running.Go(func() {
			tests[i], errs[i] = p.recordOne(name, filepath.Join(work, "reached-"+name), limit)
			<-free
		})
	}
	running.Wait()
	return tests, errors.Join(errs...)
}

func (p *program) recordOne(name, file string, limit time.Duration) (t test, err error) {
	size := p.mutants[len(p.mutants)-1].ID + 1
	if err := os.WriteFile(file, make([]byte, size), 0o644); err != nil {
		return t, fmt.Errorf("record %s: %w", name, err)
	}
	start := time.Now()
	_, passed, err := p.run([]string{name}, limit, "MUTATE_RECORD="+file)
	if err != nil {
		return t, err
	}
	marks, err := os.ReadFile(file)
	if err != nil {
		return t, fmt.Errorf("record %s: %w", name, err)
	}
	t = test{Name: name, Took: time.Since(start), Failed: !passed, Reached: make([]byte, (size+7)/8)}
	for id, mark := range marks {
		if mark != 0 {
			t.Reached[id/8] |= 1 << (id % 8)
		}
	}
	return t, nil
}

// failing returns the names of the tests that fail or exceed the time limit without a mutant.
func failing(tests []test) string {
	var names []string
	for i := range tests {
		if tests[i].Failed {
			names = append(names, tests[i].Name)
		}
	}
	return strings.Join(names, " ")
}
