package counters

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

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

// Linger is the time for which a series is exported before its first increase and after its last one, if it replaces
// another or is replaced. Within that time each Prometheus server must collect, so that it has all increases.
const Linger = 5 * time.Minute

// Set has the counters of a map. Its methods are safe for concurrent use.
//
// A counter is the sum of the increases that this node's table has accepted as local changes: see [Set.Changed]. Neither
// deletes nor records of peers change it. Each node therefore counts what happened on it.
//
// Each label content has a series until there are more than Spec.Top. Then those have one that increase most, and Other
// has the rest.
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
	other *series
	// full is true if there were Spec.Top series. A new content then has no series before the next collection.
	full bool
	// candidates has contents that are not in byRaw.
	candidates candidates

	raw       []byte
	increases []uint64
}

// phase is the part of a series' life.
type phase string

const (
	active phase = ""
	// starting: the series is exported, and Other has its increases.
	starting phase = "starting"
	// ending: as starting, and then the series is removed.
	ending phase = "ending"
)

type series struct {
	labels []string
	// totals has the content of each counter. It never decreases.
	totals []uint64
	// phase ends at until, unless it is active.
	phase phase
	until time.Time
	// raws has the keys of byRaw that refer to the series.
	raws []string
	// increase is that of the first counter since the last collection, also while Other has it. recent is the sum of the
	// former ones, with half the weight for each collection.
	increase, recent uint64
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

func (s *Set) newSeries(labels []string) *series {
	return &series{labels: labels, totals: make([]uint64, len(s.spec.Fields))}
}

// SetTypes sets the types of the map's entries. Until then, and after an error, changes are not counted. Errors wrap
// ErrField.
func (s *Set) SetTypes(types *schema.Schema, links schema.Links) error {
	l, err := s.spec.layout(types, links)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.layout = l
	clear(s.byRaw)
	s.unmapped = len(s.series)
	for _, of := range s.series {
		of.raws = nil
	}
	s.candidates.reset()
	return err
}

// Changed adds what an entry increased in a local change. from is the former value, or nil for a new entry, which
// increases from 0. So does a field that falls below half: it was reset. Another decrease adds nothing. Changed
// reports whether a field is lower. The table calls it under its lock.
func (s *Set) Changed(key, from, to []byte) (decreased bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A map that is replaced has other types for a moment.
	if s.layout == nil || !s.layout.fits(key, from, to) {
		return false
	}
	increased, decreased := s.measure(from, to)
	if !increased {
		return decreased
	}
	s.raw = s.layout.raw(s.raw[:0], key)
	of, known := s.find(key)
	of.increase += s.increases[0]
	if of.phase != active {
		of = s.other
	}
	for i, n := range s.increases {
		of.totals[i] += n
	}
	if !known {
		s.candidates.add(s.raw, key, s.increases[0])
	}
	return decreased
}

// measure sets increases to those of a change, and reports whether a field increased, and whether one is lower.
func (s *Set) measure(from, to []byte) (increased, decreased bool) {
	for i := range s.layout.fields {
		n, lower := s.layout.fields[i].increase(from, to, !s.spec.NoResets)
		s.increases[i] = n
		increased, decreased = increased || n > 0, decreased || lower
	}
	return increased, decreased
}

// Decreases reports whether a field is lower in to than in from. The table calls it if to may be the earlier value.
func (s *Set) Decreases(from, to []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.layout != nil && len(from) == len(to) && len(to) == s.layout.schema.Value.Size &&
		slices.ContainsFunc(s.layout.fields, func(f field) bool { return f.decreases(from, to) })
}

// find returns the series of a key, with s.raw set. It returns Other and false for a content without a series. The lock
// is held.
func (s *Set) find(key []byte) (of *series, known bool) {
	if of := s.byRaw[string(s.raw)]; of != nil {
		return of, true
	}
	if s.full && s.unmapped == 0 || s.candidates.byRaw[string(s.raw)] != nil {
		return s.other, false
	}
	labels := s.layout.text(key)
	of = s.series[join(labels)]
	if of == nil {
		if s.full || isOther(labels) {
			return s.other, false
		}
		of = s.export(labels)
	}
	s.mapRaw(string(s.raw), of)
	return of, true
}

// maxRaws is the maximum number of contents that refer to one series. Those above it count as unknown.
const maxRaws = 16

// mapRaw lets find return a series for a content.
func (s *Set) mapRaw(raw string, of *series) {
	if len(of.raws) == 0 {
		s.unmapped--
	}
	if len(of.raws) < maxRaws {
		of.raws = append(of.raws, raw)
		s.byRaw[raw] = of
	}
}

// export adds a series for labels that have none.
func (s *Set) export(labels []string) *series {
	of := s.newSeries(labels)
	s.series[join(labels)] = of
	s.unmapped++
	s.full = s.full || len(s.series) >= s.spec.Top
	return of
}

func join(labels []string) string { return strings.Join(labels, "\x00") }

// Row is the content of a series.
type Row struct {
	Labels []string // as in Spec.Labels
	Totals []uint64 // as in Spec.Fields
}

// Collect decides which series are exported and returns them, and Other at the end.
func (s *Set) Collect(now time.Time) []Row {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endPhases(now)
	s.replaceSmall(now)
	rows := make([]Row, 0, len(s.series)+1)
	for _, of := range s.series {
		of.recent, of.increase = of.weight(), 0
		rows = append(rows, of.row())
	}
	slices.SortFunc(rows, func(a, b Row) int { return slices.Compare(a.Labels, b.Labels) })
	return append(rows, s.other.row())
}

func (of *series) row() Row {
	return Row{slices.Clone(of.labels), slices.Clone(of.totals)}
}

// weight is what a series increased lately.
func (of *series) weight() uint64 { return of.recent/2 + of.increase }

// endPhases makes series active, and removes those that were replaced.
func (s *Set) endPhases(now time.Time) {
	for name, of := range s.series {
		if of.phase == active || now.Before(of.until) {
			continue
		}
		if of.phase == ending {
			delete(s.series, name)
			if len(of.raws) == 0 {
				s.unmapped--
			}
			for _, raw := range of.raws {
				delete(s.byRaw, raw)
			}
		}
		of.phase = active
	}
}

// replaceSmall gives free series to the contents that increased most, and ends series that increased less than half as
// much as a content without one.
func (s *Set) replaceSmall(now time.Time) {
	list := slices.Clone(s.candidates.heap)
	if len(list) == 0 {
		return
	}
	slices.SortFunc(list, func(a, b *candidate) int { return cmp.Compare(b.least(), a.least()) })
	var smallest []*series
	free := s.spec.Top - len(s.series)
	for _, of := range s.series {
		if of.phase == active {
			smallest = append(smallest, of)
		}
	}
	slices.SortFunc(smallest, func(a, b *series) int { return cmp.Compare(a.weight(), b.weight()) })
	pending := len(s.series) - len(smallest) // those that end make room for a content each
	for _, c := range list {
		labels := s.layout.text(c.key)
		if isOther(labels) {
			continue
		}
		if of := s.series[join(labels)]; of != nil {
			s.mapRaw(c.raw, of)
			continue
		}
		switch {
		case free > 0:
			free--
			of := s.export(labels)
			of.phase, of.until, of.increase = starting, now.Add(Linger), c.least()
			s.mapRaw(c.raw, of)
		case pending > 0:
			pending-- // waits for a series that ends
		case len(smallest) > 0 && c.least()/2 > smallest[0].weight():
			smallest[0].phase, smallest[0].until = ending, now.Add(Linger)
			smallest = smallest[1:]
		default:
			s.candidates.reset()
			return
		}
	}
	s.candidates.reset()
}
