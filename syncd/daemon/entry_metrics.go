package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"mapsync/syncd/config"
	"mapsync/syncd/counters"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"

	"github.com/prometheus/client_golang/prometheus"
)

// entryMetrics has the counters of the setting metrics. They outlive the tables of their maps, and a restart of syncd: a
// scrape saves them before it exports them, so that they do not fall.
type entryMetrics struct {
	daemon *Daemon
	path   string // of the saved counters
	list   []*mapCounters
	// writing has an element while a goroutine writes the file. A disk may hang.
	writing chan struct{}

	mu      sync.Mutex // held while the counters are collected and saved
	saved   []byte     // content of the file; nil: unknown
	problem string     // the last logged error, until a save succeeds
}

// saveTimeout is the longest time for which a scrape waits for the file.
const saveTimeout = time.Second

// mapCounters is one entry of the setting metrics.
type mapCounters struct {
	*counters.Set
	setting *config.EntryMetrics
	descs   []*prometheus.Desc

	mu  sync.Mutex
	err error // the types of the map do not have the fields
}

// maxCountersSize is the maximum size of the file of the counters in bytes.
const maxCountersSize = 64 << 20

// countersVersion is the version of the file of the counters that this release writes. It increases if an
// earlier release would misread the file. This release reads all versions from firstCountersVersion on.
const (
	firstCountersVersion = 1
	countersVersion      = 1
)

// countersFile is the content of the file.
type countersFile struct {
	Version  int                       `json:"version"`
	Counters map[string]counters.State `json:"counters"` // by mapCounters.id
}

// name returns the name of the first counter.
func (c *mapCounters) name() string { return c.setting.Counters[0].Name }

// id identifies the counters in the file.
func (c *mapCounters) id() string { return c.setting.Map + "/" + c.name() }

// openEntryMetrics returns the counters of the settings with their last saved content.
func openEntryMetrics(d *Daemon) *entryMetrics {
	e := &entryMetrics{daemon: d, path: filepath.Join(d.config.StateDir, d.config.NodeName+".counters.json"), writing: make(chan struct{}, 1)}
	for i := range d.config.Metrics {
		setting := &d.config.Metrics[i]
		c := &mapCounters{setting: setting}
		for _, counter := range setting.Counters {
			c.descs = append(c.descs, prometheus.NewDesc(counter.Name, counter.Help, setting.LabelNames(), nil))
		}
		c.Set = newCounters(&d.config, setting)
		e.list = append(e.list, c)
	}
	if len(e.list) == 0 {
		return e
	}
	former, err := e.read()
	if err != nil {
		d.log.Warn("failed to read the counters of entries, starting at 0", "file", e.path, "error", err,
			"hint", "syncd replaces the file; queries with rate() and increase() see a reset of the counters")
	}
	for _, c := range e.list {
		c.Restore(former[c.id()])
	}
	return e
}

// newCounters returns counters of one entry of the setting metrics, which count nothing yet.
func newCounters(c *config.Config, setting *config.EntryMetrics) *counters.Set {
	spec := counters.Spec{Top: setting.Series(), NoResets: c.DrainSums(setting.Map)}
	for _, label := range setting.LabelNames() {
		spec.Labels = append(spec.Labels, counters.Label{Name: label, Field: setting.Labels[label]})
	}
	for _, counter := range setting.Counters {
		spec.Fields = append(spec.Fields, counter.Field)
	}
	return counters.New(spec)
}

func (e *entryMetrics) read() (map[string]counters.State, error) {
	data, err := readPlainFile(e.path, maxCountersSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var file countersFile
	if err := parseVersioned(data, &file, "counters", versions{
		firstCountersVersion, countersVersion, "to keep them, copy the file before a node returns to an earlier release",
	}); err != nil {
		return nil, err
	}
	return file.Counters, nil
}

// of returns the counters of a map.
func (e *entryMetrics) of(name string) (list mapCounterList) {
	for _, c := range e.list {
		if c.setting.Map == name {
			list = append(list, c)
		}
	}
	return list
}

// save writes the counters to the file. It waits for at most limit. The lock is held.
func (e *entryMetrics) save(limit time.Duration) {
	file := countersFile{Version: countersVersion, Counters: make(map[string]counters.State, len(e.list))}
	for _, c := range e.list {
		file.Counters[c.id()] = c.State()
	}
	data, err := json.Marshal(file)
	if err == nil && bytes.Equal(data, e.saved) {
		return
	}
	if err == nil && len(data) > maxCountersSize {
		err = fmt.Errorf("counters take %d bytes, more than %d: lower top", len(data), maxCountersSize)
	}
	if err == nil {
		err = e.write(data, limit)
	}
	if err == nil {
		e.saved, e.problem = data, ""
		return
	}
	if text := err.Error(); text != e.problem {
		e.problem = text
		e.daemon.remoteLog.Warn("failed to save the counters of entries", "file", e.path, "error", err,
			"hint", "after a restart of syncd they continue at the last saved content; free or repair state-dir")
	}
}

var errDiskHangs = errors.New("the disk does not answer")

// write replaces the file, and returns an error if that takes longer than limit.
func (e *entryMetrics) write(data []byte, limit time.Duration) error {
	select {
	case e.writing <- struct{}{}:
	case <-time.After(limit):
		return errDiskHangs
	}
	done := make(chan error, 1)
	go func() {
		err := os.MkdirAll(filepath.Dir(e.path), 0o700)
		if err == nil {
			err = replaceFile(e.path, data)
		}
		<-e.writing
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return errDiskHangs
	}
}

// close saves the counters for the next syncd. Its error is always nil.
func (e *entryMetrics) close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.list) > 0 {
		e.save(10 * saveTimeout)
	}
	return nil
}

// mapCounterList has the counters of a map, which the table observes.
type mapCounterList []*mapCounters

// Changed implements table.Counter.
func (l mapCounterList) Changed(key, from, to []byte) (decreased bool) {
	for _, c := range l {
		decreased = c.Set.Changed(key, from, to) || decreased
	}
	return decreased
}

// Decreases implements table.Counter.
func (l mapCounterList) Decreases(from, to []byte) bool {
	return slices.ContainsFunc(l, func(c *mapCounters) bool { return c.Set.Decreases(from, to) })
}

// counter returns what observes the replica's tables.
func (m *replica) counter() table.Counter {
	if list := m.daemon.entryMetrics.of(m.name); len(list) > 0 {
		return list
	}
	return nil
}

// useCounterTypes sets the types of the entries that are counted.
func (m *replica) useCounterTypes(s *schema.Schema) {
	for _, c := range m.daemon.entryMetrics.of(m.name) {
		err := c.SetTypes(s, m.daemon.namesIn(m.table))
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		if err != nil {
			m.log.Error("metrics of the map are not usable", "counter", c.name(), "error", err, "hint", "correct metrics in the settings and restart syncd")
		}
	}
}

// metricsProblem returns why counters of the map's entries do not count, or an empty text.
func (m *replica) metricsProblem() string {
	var errs []string
	for _, c := range m.daemon.entryMetrics.of(m.name) {
		c.mu.Lock()
		if c.err != nil {
			errs = append(errs, fmt.Sprintf("counter %s: %v", c.name(), c.err))
		}
		c.mu.Unlock()
	}
	return strings.Join(errs, "; ")
}

// entryMetrics sends the counters of entries.
func (s sink) entryMetrics(e *entryMetrics) {
	if len(e.list) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	rows := make([][]counters.Row, len(e.list))
	for i, c := range e.list {
		rows[i] = c.Collect(time.Now())
	}
	e.save(saveTimeout)
	for i, c := range e.list {
		c.mu.Lock()
		s.gauge(metricsUsable, boolValue(c.err == nil), c.setting.Map, c.name())
		c.mu.Unlock()
		for _, row := range rows[i] {
			for f, d := range c.descs {
				s.counter(d, row.Totals[f], row.Labels...)
			}
		}
	}
}
