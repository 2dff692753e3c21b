package config

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Limits of the setting metrics.
const (
	DefaultTop  = 100
	maxTop      = 10_000
	maxCounters = 16
)

// EntryMetrics is an entry of the setting metrics: Prometheus counters of the fields of a map's entries. All of them have
// the same labels.
type EntryMetrics struct {
	Map      string            `yaml:"map"`
	Counters []EntryCounter    `yaml:"counters"`
	Labels   map[string]string `yaml:"labels"` // name of the label: field of the key
	Top      int               `yaml:"top"`    // maximum number of series besides other; 0: DefaultTop
}

// EntryCounter is a counter of a field.
type EntryCounter struct {
	Name  string `yaml:"name"`  // of the metric, ends with _total
	Field string `yaml:"field"` // unsigned integer of the value
	Help  string `yaml:"help"`
	Unit  string `yaml:"unit"` // empty, or the part of the name before _total
}

// LabelNames returns the names of the labels, sorted.
func (e *EntryMetrics) LabelNames() []string { return slices.Sorted(maps.Keys(e.Labels)) }

// Series returns the maximum number of series besides other.
func (e *EntryMetrics) Series() int {
	if e.Top == 0 {
		return DefaultTop
	}
	return e.Top
}

var (
	metricName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	// reservedMetric matches the metrics of syncd and of its runtime.
	reservedMetric = regexp.MustCompile(`^(mapsync|go|process|promhttp)_`)
)

func (c *Config) validateMetrics() error {
	var errs []error
	known := c.mapNames()
	names := make(map[string]bool)
	for i := range c.Metrics {
		e := &c.Metrics[i]
		at := fmt.Sprintf("metrics of map %q", e.Map)
		if !known[e.Map] {
			errs = append(errs, fmt.Errorf("%s: no map is called %s", at, e.Map))
		}
		if e.Top < 0 || e.Top > maxTop {
			errs = append(errs, fmt.Errorf("%s: top %d is not usable: give a number of series up to %d", at, e.Top, maxTop))
		}
		if len(e.Counters) == 0 || len(e.Counters) > maxCounters {
			errs = append(errs, fmt.Errorf("%s: %d counters: give 1 to %d", at, len(e.Counters), maxCounters))
		}
		for _, label := range e.LabelNames() {
			if !metricName.MatchString(label) || strings.HasPrefix(label, "__") || label == "cluster" {
				errs = append(errs, fmt.Errorf("%s: label %q is not usable: give letters, digits and '_', and neither cluster nor a name that begins with __", at, label))
			}
			if e.Labels[label] == "" {
				errs = append(errs, fmt.Errorf("%s: label %s has no field: write %s: FIELD", at, label, label))
			}
		}
		for _, counter := range e.Counters {
			if err := counter.validate(); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", at, err))
			}
			if names[counter.Name] {
				errs = append(errs, fmt.Errorf("%s: counter %s exists twice: give each counter one name", at, counter.Name))
			}
			names[counter.Name] = true
		}
	}
	return errors.Join(errs...)
}

func (e *EntryCounter) validate() error {
	switch {
	case !metricName.MatchString(e.Name) || !strings.HasSuffix(e.Name, "_total"):
		return fmt.Errorf("counter %q is not usable: give a name of letters, digits and '_' that ends with _total", e.Name)
	case reservedMetric.MatchString(e.Name):
		return fmt.Errorf("counter %s is not usable: names that begin with %s are those of syncd", e.Name, reservedMetric.FindString(e.Name))
	case e.Field == "":
		return fmt.Errorf("counter %s has no field: give a field of the value", e.Name)
	case e.Help == "":
		return fmt.Errorf("counter %s has no help: state what it counts", e.Name)
	case e.Unit != "" && !strings.HasSuffix(e.Name, "_"+e.Unit+"_total"):
		return fmt.Errorf("counter %s has the unit %s: its name must end with _%s_total", e.Name, e.Unit, e.Unit)
	}
	return nil
}
