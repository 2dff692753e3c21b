package daemon_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mapsync/syncd/problem"
)

// problemsElsewhere has the tests, in this package or another one, of problems that no daemon of this package has, with the reason.
var problemsElsewhere = map[string][2]string{
	"memory-corrupt":              {"TestAuditFindingsAreLoggedOnce", "only damaged memory causes it"},
	"false-digests":               {"TestFalseDigestsAreSlowedDown", "only a hostile peer causes it"},
	"records-rejected":            {"TestRejectedRecordsAreCountedAndLogged", "only a hostile peer, or different settings of nodes, cause it"},
	"drain-sums-missing":          {"TestMissingSumsAreAProblemForAnHour", "it ends after an hour"},
	"scan-failing":                {"TestScanFailures", "a test cannot make the kernel refuse a read"},
	"former-maps-unknown":         {"TestUnlistedProgramsAreUnknown", "the tests have the capability"},
	"undetected-programs-unknown": {"TestUnlistedProgramsAreUnknown", "the tests have the capability"},
	"version-skew":                {"TestProblemsOfStates", "the tests have one release"},
}

// problemsOfEvents are those that end 2 min after the last event: see package problem.
var problemsOfEvents = []string{"name-conflict", "cluster-differs", "connection-refused", "client-refused", "connections-limited", "gossip-key-differs", "gossip-invalid", "stream-refused"}

// TestEachProblemIsShown: for each problem, a test brings it about on a daemon, and reads it in the status, the metric and the readiness
// page. That test or another one removes the cause and sees the problem end, except for problems of events.
func TestEachProblemIsShown(t *testing.T) {
	shown, ended := make(map[string]bool), make(map[string]bool)
	add := func(pattern, text string, to ...map[string]bool) {
		for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			for _, m := range to {
				m[found[1]] = true
			}
		}
	}
	own := textOf(t, "*_test.go")
	add(`\.shows(?:About)?\("([a-z-]+)"`, own, shown)
	add(`\.ends\("([a-z-]+)"`, own, ended)
	add(`"Mapsync(?:Critical|Warning) ([a-z-]+)"`, own, shown, ended)               // TestAlerts
	add(`{id: "([a-z-]+)"`, textOf(t, "../../docs/remedies_test.go"), shown, ended) // TestRemedies
	for _, id := range problemsOfEvents {
		ended[id] = true
	}
	tests := textOf(t, "../*_test.go", "../*/*_test.go")
	for _, kind := range problem.Kinds {
		if other, found := problemsElsewhere[kind.ID]; found {
			if shown[kind.ID] || !strings.Contains(tests, "func "+other[0]+"(t *testing.T)") {
				t.Errorf("%s: got it shown %t, want it in %s only, which exists", kind.ID, shown[kind.ID], other[0])
			}
			continue
		}
		if !shown[kind.ID] || !ended[kind.ID] {
			t.Errorf("%s: got a test that shows it %t, and one that ends it %t, want both", kind.ID, shown[kind.ID], ended[kind.ID])
		}
	}
}

// textOf returns the texts of the files that match patterns, which must match some.
func textOf(t *testing.T, patterns ...string) string {
	t.Helper()
	var all strings.Builder
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("files %s: got %q, %v, want some", pattern, files, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
	}
	return all.String()
}
