package daemon_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"mapsync/internal/handbook"
	"mapsync/internal/poll"
	"mapsync/internal/testcert"
	"mapsync/syncd/capture"
)

var (
	typeLine   = regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`)
	sampleLine = regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? `)
	labelPair  = regexp.MustCompile(`(\w+)="([^"]*)"`)
	metricName = regexp.MustCompile(`^(mapsync|process|go)_\w+$`)
)

// scrape returns the metrics that n exports by name, with all values of their labels.
func (n *node) scrape() map[string]handbook.Metric {
	n.t.Helper()
	text, all := n.metrics(), make(map[string]handbook.Metric)
	for _, m := range typeLine.FindAllStringSubmatch(text, -1) {
		all[m[1]] = handbook.Metric{Name: m[1], Type: m[2], Labels: make(map[string][]string)}
	}
	for _, sample := range sampleLine.FindAllStringSubmatch(text, -1) {
		name := sample[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base := strings.TrimSuffix(name, suffix); all[base].Type == "histogram" {
				name = base
			}
		}
		for _, pair := range labelPair.FindAllStringSubmatch(sample[2], -1) {
			if pair[1] == "le" {
				continue // the bucket of a histogram
			}
			if m, ok := all[name]; ok && !slices.Contains(m.Labels[pair[1]], pair[2]) {
				m.Labels[pair[1]] = append(m.Labels[pair[1]], pair[2])
			}
		}
	}
	return all
}

// provokeRefusal makes n refuse a connection, because the metric of refusals has no sample
// before.
func (n *node) provokeRefusal() {
	n.t.Helper()
	conn, err := net.Dial("tcp", n.config.GRPCListen)
	if err != nil {
		n.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
		n.t.Fatal(err)
	}
}

// The runbook has a section for each exported metric and for no other metric, with its type, its
// labels and the values of its labels.
func TestRunbookHasEachMetric(t *testing.T) {
	page, err := handbook.Read("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	documented, err := page.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	ca, err := testcert.NewCA(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	dir := pinDir(t)
	path1, path2 := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	pinned(t, path1, 8, 8, 100)
	pinned(t, path2, 8, 8, 100)
	f1, f2 := newFlowNode(t, dir, 1, drainAttach()[0]), newFlowNode(t, dir, 2, drainAttach()[0])
	n1, n2 := f1.node, f2.node
	n1.config.Maps, n2.config.Maps = append(n1.config.Maps, "ct="+path1), append(n2.config.Maps, "ct="+path2)
	n1.secure(ca, testcert.Options{}, 1)
	n2.secure(ca, testcert.Options{}, 1)
	if n1.config.TLSCRL, err = ca.Revoke(); err != nil {
		t.Fatal(err)
	}
	n1.config.Metrics = flowCounters(10)
	startPair(t, n1, n2)
	n1.provokeRefusal()
	n3 := newNode(t, 3, "ct="+path1) // refused: its clock is ahead
	n3.secure(ca, testcert.Options{}, 1)
	n3.wall = func() time.Time { return time.Now().Add(time.Hour) }
	n3.start()
	// Some metrics only exist after an event: a scan, a refusal or a comparison, and one only with hooks on map
	// functions.
	const needsHooks = "mapsync_map_undetected_programs"
	hooked := drainAttach()[0] != capture.AttachSyscall
	var missing []string
	defer func() {
		if len(missing) > 0 {
			t.Errorf("sections of the runbook without an exported metric: got %v, want none", missing)
		}
	}()
	var exported map[string]handbook.Metric
	poll.Eventually(t, "each documented metric is exported", func() bool {
		exported, missing = n1.scrape(), nil
		for _, c := range n1.config.Metrics[0].Counters {
			delete(exported, c.Name)
		}
		for name := range documented {
			if _, ok := exported[name]; !ok && (hooked || name != needsHooks) {
				missing = append(missing, name)
			}
		}
		return len(missing) == 0
	})
	for name, got := range exported {
		want, ok := documented[name]
		switch {
		case !strings.HasPrefix(name, handbook.MetricPrefix):
		case !ok:
			t.Errorf("docs/runbook.md: want a section %s", name)
		default:
			compareMetric(t, want, got)
		}
	}
	for i := range page.Sections {
		for _, span := range handbook.Spans(page.Sections[i].Prose) {
			if _, ok := exported[span]; metricName.MatchString(span) && !ok {
				t.Errorf("section %q: metric %s is not exported", page.Sections[i].Title, span)
			}
		}
	}
}

// compareMetric compares a metric in the runbook (want) with an exported metric (got).
func compareMetric(t *testing.T, want, got handbook.Metric) {
	t.Helper()
	if want.Type != got.Type {
		t.Errorf("type of %s: got %s in the runbook, want %s", want.Name, want.Type, got.Type)
	}
	if w, g := slices.Sorted(maps.Keys(want.Labels)), slices.Sorted(maps.Keys(got.Labels)); !slices.Equal(w, g) {
		t.Errorf("labels of %s: got %v in the runbook, want %v", want.Name, w, g)
	}
	for label, values := range want.Labels {
		possible := got.Labels[label]
		if want.Name == "mapsync_tls_refused_total" { // exported only after an event
			possible = map[string][]string{"side": {"accept", "dial", "open"}, "reason": refusalReasons(t)}[label]
		}
		if slices.Sort(values); len(values) > 0 && !slices.Equal(values, slices.Sorted(slices.Values(possible))) {
			t.Errorf("%s, label %s: got values %q in the runbook, want %q", want.Name, label, values, possible)
		}
	}
}

// refusalReasons returns the refusal reasons in package peers.
func refusalReasons(t *testing.T) (reasons []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../peers/tls_handshake_error.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if name, ok := spec.Type.(*ast.Ident); ok && name.Name == "Reason" {
			reason, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			reasons = append(reasons, reason)
		}
		return true
	})
	return reasons
}

func (n *node) metrics() string {
	n.t.Helper()
	response, err := http.Get("http://" + n.config.MetricsListen + "/metrics")
	if err != nil {
		n.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return string(body)
}
