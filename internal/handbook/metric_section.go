package handbook

import (
	"fmt"
	"regexp"
	"strings"
)

// Metric is the description of a metric in a section of docs/runbook.md.
type Metric struct {
	// Name is the metric's name. Type is counter, gauge or histogram.
	Name, Type string
	// Labels maps each label to its possible values. The values are empty if users choose them.
	Labels map[string][]string
}

// MetricPrefix is the common prefix of the project's metric names.
const MetricPrefix = "mapsync_"

var (
	metricHead  = regexp.MustCompile(`(?s)^\s*\*(Counter|Gauge|Histogram)(, by ([^*]+))?\.\*`)
	metricLabel = regexp.MustCompile("(?s)`(\\w+)`(?:\\s+\\(([^)]*)\\))?")
)

// Metrics returns the metrics with their own section on the page, by name. Each such section starts
// with a description of the metric:
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
			return nil, fmt.Errorf("section %s does not begin with *Counter, *Gauge or *Histogram", s.Title)
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
