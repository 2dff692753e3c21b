package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"mapsync/syncd/config"
	"mapsync/syncd/counters"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"

	"github.com/prometheus/client_golang/prometheus"
)

// entryMetrics has the counters of the setting metrics. They outlive the tables of their maps, and a restart of syncd: a
// scrape saves them before it exports them, so that no counter ever falls.
type entryMetrics struct {
	daemon *Daemon
	path   string // of the saved counters
	list   []*mapCounters

	mu      sync.Mutex // held while the counters are collected and saved
	saved   []byte     // content of the file; nil: unknown
	problem string     // the last logged error, until a save succeeds
}

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

// countersVersion is the version of the file of the counters.
const countersVersion = 1

// countersFile is the content of the file. The counters are in the order of the settings, and found by the name of their
// first one.
type countersFile struct {
	Version  int                       `json:"version"`
	Counters map[string]counters.State `json:"counters"`
}

func (c *mapCounters) name() string { return c.setting.Counters[0].Name }

// openEntryMetrics returns the counters of the settings with their last saved content.
func openEntryMetrics(d *Daemon) *entryMetrics {
	e := &entryMetrics{daemon: d, path: filepath.Join(d.config.StateDir, d.config.NodeName+".counters.json")}
	for i := range d.config.Metrics {
		setting := &d.config.Metrics[i]
		c := &mapCounters{setting: setting}
		spec := counters.Spec{Top: setting.Series()}
		for _, label := range setting.LabelNames() {
			spec.Labels = append(spec.Labels, counters.Label{Name: label, Field: setting.Labels[label]})
		}
		for _, counter := range setting.Counters {
			spec.Fields = append(spec.Fields, counter.Field)
			c.descs = append(c.descs, prometheus.NewDesc(counter.Name, counter.Help, setting.LabelNames(), nil))
		}
		c.Set = counters.New(spec)
		e.list = append(e.list, c)
	}
	if len(e.list) == 0 {
		return e
	}
	former, err := e.read()
	if err != nil {
		d.log.Warn("failed to read the counters of entries, starting at 0", "file", e.path, "error", err)
	}
	for _, c := range e.list {
		c.Restore(former[c.name()])
	}
	return e
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
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("parse counters: %w", err)
	}
	if file.Version != countersVersion {
		return nil, fmt.Errorf("counters have version %d, and this syncd supports %d", file.Version, countersVersion)
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

// save writes the counters to the file. With final, syncd ends, and the tables do not change any more. The lock is held.
func (e *entryMetrics) save(final bool) {
	file := countersFile{Version: countersVersion, Counters: make(map[string]counters.State, len(e.list))}
	for _, c := range e.list {
		file.Counters[c.name()] = e.state(c, final)
	}
	data, err := json.Marshal(file)
	if err == nil && string(data) == string(e.saved) {
		return
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(e.path), 0o700)
	}
	if err == nil {
		err = replaceFile(e.path, data)
	}
	if err == nil {
		e.saved, e.problem = data, ""
		return
	}
	if text := err.Error(); text != e.problem {
		e.problem = text
		e.daemon.log.Warn("failed to save the counters of entries", "file", e.path, "error", err,
			"hint", "after a restart of syncd they continue at the last saved content; free or repair state-dir")
	}
}

// state returns the state of the counters of a map.
func (e *entryMetrics) state(c *mapCounters, final bool) (state counters.State) {
	var t *table.Table
	for _, m := range e.daemon.replicas() {
		if m.name == c.setting.Map {
			t, _ = m.current()
		}
	}
	if !final || t == nil {
		return c.State(nil)
	}
	cursor := t.NewCursor(0)
	defer cursor.Close()
	t.View(func(tx *table.Tx) {
		state = c.State(func(yield func(key, value []byte)) {
			var rec table.Record
			for tx.Next(cursor, &rec) {
				if !rec.Delete {
					yield(rec.Key, rec.Value)
				}
			}
		})
	})
	return state
}

// close saves the counters for the next syncd. Its error is always nil.
func (e *entryMetrics) close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.list) > 0 && e.daemon.maps.Load() != nil {
		e.save(true)
	}
	return nil
}

// mapCounterList has the counters of a map, which the table observes.
type mapCounterList []*mapCounters

// Changed implements table.Counter.
func (l mapCounterList) Changed(key, from, to []byte) {
	for _, c := range l {
		c.Set.Changed(key, from, to)
	}
}

// Loaded implements table.Counter.
func (l mapCounterList) Loaded(key, value []byte) {
	for _, c := range l {
		c.Set.Loaded(key, value)
	}
}

// counter returns what observes a table with entries of the types s.
func (m *replica) counter(s *schema.Schema) table.Counter {
	list := m.daemon.entryMetrics.of(m.name)
	if len(list) == 0 {
		return nil
	}
	for _, c := range list {
		err := c.SetTypes(s, m.daemon.links)
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		if err != nil {
			m.log.Error("metrics of the map are not usable", "counter", c.name(), "error", err, "hint", "correct metrics in the settings and restart syncd")
		}
	}
	return list
}

// endLoad notes that a new table has all entries of the map. With same, it is the map of the former syncd.
func (e *entryMetrics) endLoad(name string, same bool) {
	list := e.of(name)
	if len(list) == 0 {
		return
	}
	for _, c := range list {
		c.EndLoad(same)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.save(false)
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
		rows[i] = c.Collect()
	}
	e.save(false)
	for i, c := range e.list {
		c.mu.Lock()
		s.gauge(metricsUsable, boolValue(c.err == nil), c.setting.Map, c.name())
		c.mu.Unlock()
		for _, row := range rows[i] {
			for f, d := range c.descs {
				s.counter(d, row.Totals[f], validLabels(row.Labels)...)
			}
		}
	}
}

// validLabels returns the labels as valid UTF-8.
func validLabels(labels []string) []string {
	for i, l := range labels {
		labels[i] = strings.ToValidUTF8(l, "�")
	}
	return labels
}
