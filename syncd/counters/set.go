package counters

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"mapsync/syncd/schema"
)

// Other is the content of each label of the series that has the increases of all entries without a series of their own.
const Other = "other"

// minCandidates and candidatesFactor bound the label contents that are compared for a series: the maximum of the first,
// and Spec.Top times the second.
const (
	minCandidates    = 1024
	candidatesFactor = 8
)

// Set has the counters of a map. Its methods are safe for concurrent use.
//
// A counter is the sum of the increases that this node's table has accepted as local changes. An entry without a former
// value increases from 0, and so does one whose value fell: it was reset. A delete decreases nothing, and neither does
// a record of a peer. Each node therefore counts what happened on it, and the sum over all nodes counts nothing twice.
//
// Each label content has a series until there are more than Spec.Top. Then those have one that increase most, and Other
// has the rest. A series that increases less than half as much as a content without one is removed for it.
type Set struct {
	spec Spec

	mu     sync.Mutex
	layout *layout // nil until SetTypes
	// series has the exported series by their labels. It has at most Spec.Top.
	series map[string]*series
	// byRaw has series by layout.raw of the keys seen. Several contents may have the same labels.
	byRaw map[string]*series
	// unmapped is the number of series that are not in byRaw: those of a former syncd or of former types.
	unmapped int
	// other is the series of all others.
	other series
	// candidates has contents that are not in byRaw.
	candidates candidates
	// saved is true if the sums of a former syncd were restored with what the map had then.
	saved bool

	raw       []byte
	increases []uint64
}

type series struct {
	labels []string
	// totals has the content of each counter. It never decreases.
	totals []uint64
	// collected has totals at the last collection.
	collected []uint64
	// mapped is true if the series is in byRaw.
	mapped bool
	// increase is that of the first counter since the last collection. recent is the sum of the former ones, with half
	// the weight for each collection.
	increase, recent uint64
	// was and is have the sums of the entries that the map had when a former syncd ended, and has now.
	was, is []uint64
}

// New returns the counters of a specification, all 0.
func New(spec Spec) *Set {
	s := &Set{
		spec: spec, series: make(map[string]*series), byRaw: make(map[string]*series),
		candidates: newCandidates(max(minCandidates, candidatesFactor*spec.Top)), increases: make([]uint64, len(spec.Fields)),
	}
	labels := make([]string, len(spec.Labels))
	for i := range labels {
		labels[i] = Other
	}
	s.other = s.newSeries(labels)
	return s
}

func (s *Set) newSeries(labels []string) series {
	n := len(s.spec.Fields)
	return series{labels: labels, totals: make([]uint64, n), collected: make([]uint64, n), is: make([]uint64, n)}
}

// SetTypes sets the types of the map's entries, before the entries are loaded. Until then, and after an error, changes are
// not counted. Errors wrap ErrField.
func (s *Set) SetTypes(types *schema.Schema, links schema.Links) error {
	l, err := s.spec.layout(types, links)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.layout = l
	s.clearPresent()
	clear(s.byRaw)
	s.unmapped = len(s.series)
	for _, of := range s.series {
		of.mapped = false
	}
	s.candidates.reset()
	return err
}

// Changed adds what an entry increased in a local change. from is the former value, or nil if there was none. The table
// calls it under its lock.
func (s *Set) Changed(key, from, to []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.layout == nil || !s.measure(from, to) {
		return
	}
	s.raw = s.layout.raw(s.raw[:0], key)
	of := s.find(key)
	for i, n := range s.increases {
		of.totals[i] += n
	}
	of.increase += s.increases[0]
	if of == &s.other {
		s.candidates.add(s.raw, key, s.increases)
	}
}

// measure sets increases to those of a change, and reports whether there are any.
func (s *Set) measure(from, to []byte) (any bool) {
	for i := range s.layout.fields {
		f := &s.layout.fields[i]
		n := f.Sum(to)
		if from != nil {
			if was := f.Sum(from); n >= was {
				n -= was
			}
		}
		s.increases[i] = n
		any = any || n > 0
	}
	return any
}

// find returns the series of a key, with s.raw set. The lock is held.
func (s *Set) find(key []byte) *series {
	if of := s.byRaw[string(s.raw)]; of != nil {
		return of
	}
	if s.candidates.byRaw[string(s.raw)] != nil {
		return &s.other
	}
	if len(s.series) >= s.spec.Top && s.unmapped == 0 {
		return &s.other
	}
	labels := s.layout.text(key)
	of := s.series[join(labels)]
	if of == nil {
		if len(s.series) >= s.spec.Top || isOther(labels) {
			return &s.other
		}
		of = s.export(labels)
	}
	s.mapRaw(string(s.raw), of)
	return of
}

// mapRaw lets find return a series for a content.
func (s *Set) mapRaw(raw string, of *series) {
	if !of.mapped {
		of.mapped = true
		s.unmapped--
	}
	s.byRaw[raw] = of
}

// export adds a series for labels that have none.
func (s *Set) export(labels []string) *series {
	of := s.newSeries(labels)
	s.series[join(labels)] = &of
	s.unmapped++
	return &of
}

func join(labels []string) string { return strings.Join(labels, "\x00") }

// Row is the content of a series.
type Row struct {
	Labels []string // as in Spec.Labels
	Totals []uint64 // as in Spec.Fields
}

// Collect decides which series are exported and returns them, and Other at the end.
func (s *Set) Collect() []Row {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replaceSmall()
	rows := make([]Row, 0, len(s.series)+1)
	for _, of := range s.series {
		of.recent, of.increase = of.recent/2+of.increase, 0
		copy(of.collected, of.totals)
		rows = append(rows, of.row())
	}
	slices.SortFunc(rows, func(a, b Row) int { return slices.Compare(a.Labels, b.Labels) })
	return append(rows, s.other.row())
}

func (of *series) row() Row {
	return Row{slices.Clone(of.labels), slices.Clone(of.totals)}
}

// replaceSmall gives the series that increased least to contents that increased more.
func (s *Set) replaceSmall() {
	if len(s.candidates.heap) == 0 {
		return
	}
	last := make([]*series, 0, len(s.series))
	for _, of := range s.series {
		last = append(last, of)
	}
	weight := func(of *series) uint64 { return of.recent/2 + of.increase }
	slices.SortFunc(last, func(a, b *series) int { return cmp.Compare(weight(a), weight(b)) })
	first := slices.Clone(s.candidates.heap)
	slices.SortFunc(first, func(a, b *candidate) int { return cmp.Compare(b.count-b.error, a.count-a.error) })
	for _, c := range first {
		if len(s.series) >= s.spec.Top {
			if len(last) == 0 || (c.count-c.error)/2 <= weight(last[0]) {
				break
			}
			s.remove(last[0])
			last = last[1:]
		}
		s.promote(c)
	}
	s.candidates.reset()
}

// remove ends a series. Other gets what it increased since the last collection, and no former sums, so that all increases
// of all series remain those of the entries.
func (s *Set) remove(of *series) {
	for i, n := range of.totals {
		s.other.totals[i] += n - of.collected[i]
	}
	delete(s.series, join(of.labels))
	if !of.mapped {
		s.unmapped--
	}
	for raw, other := range s.byRaw {
		if other == of {
			delete(s.byRaw, raw)
		}
	}
}

// promote moves the increases of a candidate since the last collection from Other, whose exported sum does not have them,
// to a series.
func (s *Set) promote(c *candidate) {
	labels := s.layout.text(c.key)
	if isOther(labels) {
		return
	}
	of := s.series[join(labels)]
	if of == nil {
		of = s.export(labels)
	}
	s.mapRaw(c.raw, of)
	for i, n := range c.increases {
		of.totals[i] += n
		s.other.totals[i] -= n
	}
	of.increase += c.increases[0]
}
