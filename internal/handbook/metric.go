package handbook

import (
	"fmt"
	"regexp"
	"strings"
)

// Metric is what a section of docs/runbook.md says of the metric that it is about.
type Metric struct {
	// Name is the metric's, and Type counter or gauge.
	Name, Type string
	// Labels are its labels, each with the values that it can have; without values where
	// they are names of the user's.
	Labels map[string][]string
}

// MetricPrefix begins the names of the project's metrics.
const MetricPrefix = "mapsync_"

var (
	metricHead  = regexp.MustCompile(`(?s)^\s*\*(Counter|Gauge)(, by ([^*]+))?\.\*`)
	metricLabel = regexp.MustCompile("(?s)`(\\w+)`(?:\\s+\\(([^)]*)\\))?")
)

// Metrics returns the metrics that a page has a section for, by name. Each such section
// begins with what the metric is:
//
//	*Counter, by `map` and `cause` (`full`, `memory`).*
func (p *Page) Metrics() (map[string]Metric, error) {
	metrics := make(map[string]Metric)
	for i := range p.Sections {
		s := &p.Sections[i]
		if !strings.HasPrefix(s.Title, MetricPrefix) {
			continue
		}
		head := metricHead.FindStringSubmatch(s.Prose)
		switch {
		case head == nil:
			return nil, fmt.Errorf("section %s does not begin with *Counter or *Gauge", s.Title)
		case metrics[s.Title].Name != "":
			return nil, fmt.Errorf("there are two sections %s", s.Title)
		}
		m := Metric{Name: s.Title, Type: strings.ToLower(head[1]), Labels: make(map[string][]string)}
		for _, l := range metricLabel.FindAllStringSubmatch(head[3], -1) {
			m.Labels[l[1]] = Spans(l[2])
		}
		metrics[m.Name] = m
	}
	return metrics, nil
}
