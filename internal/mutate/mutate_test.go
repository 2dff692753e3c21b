package mutate

import (
	"errors"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const sample = "./testdata/sample"

func runSample(t *testing.T, change func(*Options)) *Report {
	t.Helper()
	o := Options{
		Package: sample, Parallel: 2, Limit: time.Minute, StateDir: t.TempDir(), Seed: 1,
		Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&o)
	}
	r, err := Run(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func keys(r *Report) (all []string) {
	for _, s := range r.Survivors {
		all = append(all, s.Func+": "+s.Op+" "+s.Text)
	}
	return all
}

// TestSurvivors tries every mutant of a package whose tests have known gaps.
func TestSurvivors(t *testing.T) {
	state := t.TempDir()
	r := runSample(t, func(o *Options) { o.StateDir = state })
	want := []string{
		"sum: boundary i >= 100",
		"sum: drop break",
		"same: operand true b >= a",
		"unused: negate ready",
		"unused: arithmetic n<<1 | 1",
		"unused: arithmetic n<<1",
		"unused: constant 1",
		"unused: zero n",
	}
	if diff := cmp.Diff(want, keys(r)); diff != "" {
		t.Errorf("mutants (-want +got):\n%s", diff)
	}
	if last := r.Survivors[len(r.Survivors)-1]; last.Reached != 0 || last.Reason != "an example" || last.Line != 63 {
		t.Errorf("last survivor: got %+v, want it on line 63, reached by 0 tests, with the reason \"an example\"", last)
	}
	if !slices.Equal(r.UnusedKeys, []string{"sample.go:gone: drop `x = 1`"}) {
		t.Errorf("unused keys: got %q, want only the one with function gone", r.UnusedKeys)
	}
	if r.Equivalent != 1 {
		t.Errorf("equivalent mutants: got %d, want 1", r.Equivalent)
	}
	if r.Failing != "TestFails" || r.Tried != r.Mutants || r.Killed+len(r.Survivors) != r.Tried {
		t.Errorf("report: got %+v, want failing test TestFails, and all mutants tried and either killed or survivors", r)
	}
	// A run that finds saved results does not try the mutants again. A false saved result shows this.
	killed := r.Survivors[0].Key()
	s, err := load(sample)
	if err != nil {
		t.Fatal(err)
	}
	st, err := openResults(s, state, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(st.put(outcome{Key: killed, Killed: true}), st.file.Close()); err != nil {
		t.Fatal(err)
	}
	again := runSample(t, func(o *Options) { o.StateDir = state })
	if again.Killed != r.Killed+1 || again.Tried != r.Tried {
		t.Errorf("continued run: got %+v, want %d killed of %d tried", again, r.Killed+1, r.Tried)
	}
	if fresh := runSample(t, func(o *Options) { o.StateDir, o.Fresh = state, true }); fresh.Killed != r.Killed {
		t.Errorf("fresh run: got %+v, want %d killed", fresh, r.Killed)
	}
}

func TestSampleAndFiles(t *testing.T) {
	r := runSample(t, func(o *Options) { o.Sample = 5 })
	if r.Tried != 5 {
		t.Errorf("tried mutants: got %d, want 5", r.Tried)
	}
	if r := runSample(t, func(o *Options) { o.Files = regexp.MustCompile("nothing") }); r.Tried != 0 || r.Mutants == 0 {
		t.Errorf("report without a matching file: got %+v, want no mutants tried, but some found", r)
	}
}

// TestInstrumentedText compares the instrumented code with the golden file.
func TestInstrumentedText(t *testing.T) {
	s, err := load(sample)
	if err != nil {
		t.Fatal(err)
	}
	in := instrument(s, nil)
	lines := strings.Split(in.files["sample.go"], "\n")
	original := strings.Split(s.text["sample.go"], "\n")
	if len(lines) != len(original) {
		t.Errorf("lines: got %d, want %d", len(lines), len(original))
	}
	number := regexp.MustCompile(`\d+([,)])`)
	var got []string
	for i := range lines {
		if lines[i] != original[i] {
			got = append(got, number.ReplaceAllString(strings.TrimSpace(lines[i]), "#$1"))
		}
	}
	golden, err := os.ReadFile("testdata/sample.golden")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(golden), strings.Join(got, "\n")+"\n"); diff != "" {
		t.Errorf("instrumented lines (-want +got):\n%s", diff)
		t.Logf("instrumented lines:\n%s", strings.Join(got, "\n"))
	}
}

// TestVersionIncludesHelpers: the simulator decides which mutants of the table the tests detect.
func TestVersionIncludesHelpers(t *testing.T) {
	s, err := load("../../syncd/table")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"merge_test.go", "simulation_test.go", "tabletest/world.go"} {
		if !slices.Contains(s.tests, name) {
			t.Errorf("files of the tests: got %q, want %s among them", s.tests, name)
		}
	}
}

// TestExemptionLists reads the lists of the packages that make mutate covers.
func TestExemptionLists(t *testing.T) {
	for _, dir := range []string{"../../syncd/table", "../../syncd/replicate", "../../syncd/replicate/wire"} {
		if list, err := readExemptions(dir); err != nil || len(list) == 0 {
			t.Errorf("%s: got %d entries, error %v, want at least one entry and nil", dir, len(list), err)
		}
	}
}
