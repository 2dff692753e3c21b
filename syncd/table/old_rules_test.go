package table_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

var oldRules = flag.String("sim.oldrules", "", "regular expression: TestSimulationFindsOldRules puts these rules back; empty: none")

// oldRule is a rule that this package, or the part of syncd/replicate that package tabletest repeats, does not have any more
// because it was wrong. It replaces a part of a file, in which old occurs once.
type oldRule struct {
	name, file, old, new string
	// test is the test that finds it. It is another one than a simulation where no simulation shows the difference. Empty:
	// TestSimulation.
	test string
}

// oldRuleSeeds is the number of seeds within which the simulation must find each of oldRuleList.
const oldRuleSeeds = 100_000

// TestOldRulesApply checks that each old rule replaces a part of the present source.
func TestOldRulesApply(t *testing.T) {
	for _, r := range oldRuleList {
		r.source(t)
	}
}

// TestSimulationFindsOldRules puts old rules back, one at a time, and runs the simulation, or the test of the rule, which must
// fail. It takes minutes:
//
//	go test ./syncd/table -run TestSimulationFindsOldRules -sim.oldrules . -timeout 0 -v
func TestSimulationFindsOldRules(t *testing.T) {
	if *oldRules == "" {
		t.Skip("-sim.oldrules is not set")
	}
	chosen := regexp.MustCompile(*oldRules)
	for _, r := range oldRuleList {
		if !chosen.MatchString(r.name) {
			continue
		}
		check := r.check
		if r.test != "" && !strings.HasPrefix(r.test, "TestSimulation") {
			check = r.checkTest
		}
		t.Run(strings.ReplaceAll(r.name, " ", "-"), check)
	}
}

// checkTest fails unless the test of the rule fails with it.
func (r *oldRule) checkTest(t *testing.T) {
	run := exec.Command(r.build(t), "-test.run", "^"+r.test+"$", "-test.v")
	out, err := run.CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("--- FAIL: "+r.test+" ")) {
		t.Fatalf("%s: got %v, want a failure:\n%.2000s", r.test, err, out)
	}
	t.Logf("%s fails", r.test)
}

// check fails unless the simulation finds the rule.
func (r *oldRule) check(t *testing.T) {
	name, first := cmp.Or(r.test, "TestSimulation"), *simFirst
	if first == 0 {
		first = 1
	}
	seeds := oldRuleSeeds
	if *simSeeds > 0 {
		seeds = *simSeeds
	}
	began, binary := time.Now(), r.build(t)
	for from, end := first, first+uint64(seeds); from < end; {
		seed, failure := failingSeed(t, binary, name, from, end-from)
		if failure == "" {
			break
		}
		// A seed that fails without the rule, too, finds another fault.
		self, err := os.Executable()
		if err != nil {
			t.Fatalf("find this binary: %v", err)
		}
		if _, other := failingSeed(t, self, name, seed, 1); other == "" {
			t.Logf("%s: %d seeds, %.0f s: seed %d, %s", name, seed-first+1, time.Since(began).Seconds(), seed, failure)
			return
		}
		t.Logf("%s: seed %d fails without the rule, too", name, seed)
		from = seed + 1
	}
	t.Fatalf("%s: got no failure in %d seeds, want one", name, seeds)
}

// failingSeed runs a simulation and returns the first seed that fails, with its failure. Empty: none fails.
func failingSeed(t *testing.T, binary, name string, first, seeds uint64) (seed uint64, failure string) {
	t.Helper()
	run := exec.Command(binary, "-test.run", "^"+name+"$", "-test.timeout", "0", "-sim.failures", "1",
		"-sim.seeds", strconv.FormatUint(seeds, 10), "-sim.first", strconv.FormatUint(first, 10))
	out, err := run.CombinedOutput()
	if err == nil {
		return 0, ""
	}
	found := regexp.MustCompile(`seed (\d+), (.*)`).FindSubmatch(out)
	if found == nil {
		t.Fatalf("%s from seed %d: %v, want a failing seed:\n%.2000s", name, first, err, out)
	}
	seed, err = strconv.ParseUint(string(found[1]), 10, 64)
	if err != nil {
		t.Fatalf("read the seed: %v", err)
	}
	return seed, string(found[2])
}

// source returns the file of the rule, which contains the replaced part once.
func (r *oldRule) source(t *testing.T) []byte {
	t.Helper()
	source, err := os.ReadFile(r.file)
	if err != nil {
		t.Fatalf("read %s: %v", r.file, err)
	}
	if n := bytes.Count(source, []byte(r.old)); n != 1 {
		t.Fatalf("%s, %s: got the replaced text %d times, want once: %q", r.name, r.file, n, r.old)
	}
	return source
}

// build compiles the tests with the rule, and returns the path of the binary.
func (r *oldRule) build(t *testing.T) string {
	dir := t.TempDir()
	path, err := filepath.Abs(r.file)
	if err != nil {
		t.Fatalf("find %s: %v", r.file, err)
	}
	source := r.source(t)
	changed, overlay, binary := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "table.test")
	list, _ := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	for name, text := range map[string][]byte{changed: bytes.Replace(source, []byte(r.old), []byte(r.new), 1), overlay: list} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatalf("write the rule: %v", err)
		}
	}
	if out, err := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("compile with the rule: %v\n%s", err, out)
	}
	return binary
}
