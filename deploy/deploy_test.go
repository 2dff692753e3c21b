// Package deploy tests that the files in this directory match the program.
package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/internal/handbook"
	"mapsync/syncd/problem"

	"github.com/goccy/go-yaml"
)

var (
	metricName  = regexp.MustCompile(handbook.MetricPrefix + `\w+`)
	selector    = regexp.MustCompile(`(\w+)\{([^}]*)\}`)
	matcher     = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	grouping    = regexp.MustCompile(`\b(?:by|without|on|ignoring) \(([^)]*)\)`)
	usedLabel   = regexp.MustCompile(`\$labels\.(\w+)`)
	legendLabel = regexp.MustCompile(`\{\{(\w+)\}\}`)
	pageLink    = regexp.MustCompile(`/(\w+)\.md#(\S+|{{ \$labels\.id }})$`)
)

// targetLabels are the labels that Prometheus or the setting cluster adds to each sample.
var targetLabels = []string{"instance", "job", "cluster"}

// runbook is the runbook page with its metrics, and the page about problems. Other tests verify that these are the metrics and
// problems of the program.
type runbook struct {
	pages   map[string]*handbook.Page // by name
	metrics map[string]handbook.Metric
}

func readRunbook(t *testing.T) *runbook {
	t.Helper()
	r := &runbook{pages: make(map[string]*handbook.Page)}
	for _, name := range []string{"runbook", "night"} {
		var err error
		if r.pages[name], err = handbook.Read("../docs/" + name + ".md"); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if r.metrics, err = r.pages["runbook"].Metrics(); err != nil {
		t.Fatal(err)
	}
	return r
}

// checkExpr returns an error for an unknown metric or label in an expression, or for an operation that
// does not fit the metric's type.
func (r *runbook) checkExpr(expr string) error {
	for _, name := range metricName.FindAllString(expr, -1) {
		m, ok := r.metrics[name]
		rated := regexp.MustCompile(`(rate|increase)\(` + name + `\b`).MatchString(expr)
		switch {
		case !ok:
			return fmt.Errorf("unknown metric %s", name)
		case rated != (m.Type == "counter"):
			return fmt.Errorf("%s is a %s", name, m.Type)
		}
	}
	for _, s := range selector.FindAllStringSubmatch(expr, -1) {
		m, ok := r.metrics[s[1]]
		rest := matcher.ReplaceAllString(s[2], "")
		if strings.Trim(rest, ", ") != "" {
			return fmt.Errorf("invalid matchers %q", s[2])
		}
		for _, match := range matcher.FindAllStringSubmatch(s[2], -1) {
			if ok && !slices.Contains(targetLabels, match[1]) {
				if err := checkValue(m, match[1], match[3]); err != nil {
					return err
				}
			}
		}
	}
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(g[1], ",") {
			if err := r.checkLabel(expr, strings.TrimSpace(label)); err != nil {
				return err
			}
		}
	}
	for _, pair := range []string{"()", "{}", "[]"} {
		if strings.Count(expr, pair[:1]) != strings.Count(expr, pair[1:]) {
			return fmt.Errorf("%s do not match", pair)
		}
	}
	return nil
}

// checkValue returns an error for an unknown label, or for an unknown value of it.
func checkValue(m handbook.Metric, label, pattern string) error {
	values, ok := m.Labels[label]
	if !ok {
		return fmt.Errorf("%s has no label %s", m.Name, label)
	}
	for value := range strings.SplitSeq(pattern, "|") {
		if len(values) > 0 && !slices.Contains(values, value) {
			return fmt.Errorf("%s has no %s=%q", m.Name, label, value)
		}
	}
	return nil
}

// checkLabel returns an error if none of the metrics of an expression has the label.
func (r *runbook) checkLabel(expr, label string) error {
	if slices.Contains(targetLabels, label) {
		return nil
	}
	for _, name := range metricName.FindAllString(expr, -1) {
		if _, ok := r.metrics[name].Labels[label]; ok {
			return nil
		}
	}
	return fmt.Errorf("nothing in %s has a label %s", expr, label)
}

// checkLink returns an error if a link does not refer to a section of a page. The anchor of an alert about problems is the id of the
// problem.
func (r *runbook) checkLink(link, expr string) error {
	found := pageLink.FindStringSubmatch(link)
	if found == nil || r.pages[found[1]] == nil {
		return fmt.Errorf("%q leads to no page", link)
	}
	anchors := []string{found[2]}
	if found[2] == "{{ $labels.id }}" {
		if anchors = nil; strings.HasPrefix(expr, "mapsync_problem{") {
			for _, k := range problem.Kinds {
				anchors = append(anchors, k.ID)
			}
		}
	}
	for _, anchor := range anchors {
		if r.pages[found[1]].Find(anchor) == nil {
			return fmt.Errorf("%q leads to no section %s", link, anchor)
		}
	}
	if len(anchors) == 0 {
		return fmt.Errorf("%q has the id of a problem, and %q is about no problem", link, expr)
	}
	return nil
}

type ruleFile struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []struct {
			Alert       string            `yaml:"alert"`
			Expr        string            `yaml:"expr"`
			For         string            `yaml:"for"`
			Labels      map[string]string `yaml:"labels"`
			Annotations map[string]string `yaml:"annotations"`
		} `yaml:"rules"`
	} `yaml:"groups"`
}

func TestAlerts(t *testing.T) {
	r := readRunbook(t)
	data, err := os.ReadFile("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file ruleFile
	if err := yaml.NewDecoder(bytes.NewReader(data), yaml.Strict()).Decode(&file); err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			if !strings.HasPrefix(rule.Alert, "Mapsync") || seen[rule.Alert] {
				t.Errorf("alert %q: name: want a unique non-empty name", rule.Alert)
			}
			seen[rule.Alert] = true
			if err := r.checkExpr(rule.Expr); err != nil || rule.Expr == "" {
				t.Errorf("%s: expression %q: got error %v, want nil and an expression that is not empty", rule.Alert, rule.Expr, err)
			}
			if wait, err := time.ParseDuration(rule.For); err != nil || wait < time.Minute {
				t.Errorf("%s: for: got %q, error %v, want at least %s and nil", rule.Alert, rule.For, err, time.Minute)
			}
			if s := rule.Labels["severity"]; s != "page" && s != "ticket" {
				t.Errorf("%s: severity: got %q, want \"page\" or \"ticket\"", rule.Alert, s)
			}
			if err := r.checkLink(rule.Annotations["runbook_url"], rule.Expr); err != nil {
				t.Errorf("%s: got error %v, want nil", rule.Alert, err)
			}
			for _, label := range usedLabel.FindAllStringSubmatch(rule.Annotations["summary"], -1) {
				if err := r.checkLabel(rule.Expr, label[1]); err != nil {
					t.Errorf("%s: got error %v, want nil", rule.Alert, err)
				}
			}
			if rule.Annotations["summary"] == "" {
				t.Errorf("%s: summary: got none, want a text", rule.Alert)
			}
		}
	}
	if len(seen) == 0 {
		t.Error("alerts: got none, want at least one")
	}
}

type dashboard struct {
	Title      string
	Templating struct {
		List []struct{ Name, Query string }
	}
	Panels []struct {
		ID                 int
		Title, Description string
		GridPos            struct{ X, Y, W, H int }
		Targets            []struct{ RefID, Expr, LegendFormat string }
	}
}

func TestDashboard(t *testing.T) {
	r := readRunbook(t)
	data, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	ids, places := make(map[int]bool), make(map[[2]int]bool)
	for _, p := range d.Panels {
		if p.ID == 0 || ids[p.ID] || len(p.Targets) == 0 {
			t.Errorf("panel %q: got number %d and %d queries, want a unique number other than 0 and at least one query",
				p.Title, p.ID, len(p.Targets))
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if at[0] >= 24 || places[at] {
					t.Fatalf("panel %q: got an overlap or a position outside the grid, want a free position in 24 columns", p.Title)
				}
				places[at] = true
			}
		}
		if err := r.checkLink(p.Description, ""); err != nil {
			t.Errorf("panel %q: got error %v, want nil", p.Title, err)
		}
		for _, target := range p.Targets {
			if err := r.checkExpr(target.Expr); err != nil || !metricName.MatchString(target.Expr) {
				t.Errorf("panel %q: expression %q: got error %v, want nil and an expression with a metric", p.Title, target.Expr, err)
			}
			for _, label := range legendLabel.FindAllStringSubmatch(target.LegendFormat, -1) {
				if err := r.checkLabel(target.Expr, label[1]); err != nil {
					t.Errorf("panel %q: got error %v, want nil", p.Title, err)
				}
			}
		}
	}
	for _, v := range d.Templating.List {
		for _, name := range metricName.FindAllString(v.Query, -1) {
			if r.metrics[name].Name == "" {
				t.Errorf("variable %s: got unknown metric %s, want a metric of the runbook", v.Name, name)
			}
		}
	}
	if len(d.Panels) == 0 || d.Title == "" {
		t.Errorf("dashboard: got %d panels and title %q, want at least one panel and a title", len(d.Panels), d.Title)
	}
}

func TestInvalidExpressionsAreDetected(t *testing.T) {
	r := readRunbook(t)
	for expr, want := range map[string]string{
		`mapsync_ready == 0`: "",
		`mapsync_map_state{state=~"waiting|refused"} == 1`:      "",
		`sum by (peer) (rate(mapsync_stream_deltas_total[1m]))`: "has a label peer",
		`mapsync_readiness == 0`:                                "unknown metric mapsync_readiness",
		`rate(mapsync_ready[1m])`:                               "is a gauge",
		`mapsync_repairs_total > 0`:                             "is a counter",
		`mapsync_map_state{state="away"}`:                       `no state="away"`,
		`mapsync_map_state{peer="a"}`:                           "no label peer",
		`mapsync_map_state{state: waiting}`:                     "invalid matchers",
		`(mapsync_ready == 0`:                                   "do not match",
	} {
		err := r.checkExpr(expr)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", expr, err, want)
		}
	}
	const id = "file:/x/night.md#{{ $labels.id }}"
	for link, expr := range map[string]string{
		"file:/x/runbook.md#nowhere": "", "file:/x/runbook.md": "", "file:/x/other.md#mapsync_ready": "", id: "mapsync_ready == 0",
		"file:/x/runbook.md#{{ $labels.id }}": "mapsync_problem{} > 0",
	} {
		if r.checkLink(link, expr) == nil {
			t.Errorf("checkLink of %q with %q: got nil, want an error", link, expr)
		}
	}
	if err := r.checkLink(id, `mapsync_problem{severity="critical"} > 0`); err != nil {
		t.Errorf("checkLink of %q: got error %v, want nil", id, err)
	}
}
