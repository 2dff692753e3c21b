package counters

import "slices"

// State is what a restart of syncd needs to continue the counters.
type State struct {
	Fields []string      `json:"fields"`
	Series []SeriesState `json:"series"` // Other is the last one
}

// SeriesState is the state of a series.
type SeriesState struct {
	Labels []string `json:"labels"`
	Totals []uint64 `json:"totals"`
	// Present has the sums of the entries that the map had when syncd ended, or nothing if syncd was killed.
	Present []uint64 `json:"present,omitempty"`
}

// State returns the state. If syncd ends, entries calls its argument for each entry of the map, and the caller holds the
// lock of the table. Otherwise entries is nil.
func (s *Set) State(entries func(yield func(key, value []byte))) State {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clearPresent()
	if entries != nil {
		entries(s.addPresent)
	}
	all := make([]*series, 0, len(s.series)+1)
	for _, of := range s.series {
		all = append(all, of)
	}
	slices.SortFunc(all, func(a, b *series) int { return slices.Compare(a.labels, b.labels) })
	state := State{Fields: s.spec.Fields}
	for _, of := range append(all, &s.other) {
		row := of.row()
		one := SeriesState{Labels: row.Labels, Totals: row.Totals}
		if entries != nil {
			one.Present = slices.Clone(of.is)
		}
		state.Series = append(state.Series, one)
	}
	return state
}

// Restore continues the counters of a former syncd. It ignores the state of a specification with other fields or labels.
func (s *Set) Restore(state State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(state.Fields, s.spec.Fields) {
		return
	}
	for i, from := range state.Series {
		if len(from.Labels) != len(s.spec.Labels) || len(from.Totals) != len(s.spec.Fields) {
			return
		}
		of := &s.other
		if i < len(state.Series)-1 {
			if len(s.series) >= s.spec.Top {
				continue
			}
			of = s.export(from.Labels)
		}
		copy(of.totals, from.Totals)
		if len(from.Present) == len(s.spec.Fields) {
			of.was, s.saved = from.Present, true
		}
	}
}

// Loaded notes an entry that the map had when syncd started. The table calls it under its lock.
func (s *Set) Loaded(key, value []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.saved {
		s.addPresent(key, value)
	}
}

// EndLoad adds what the entries of the map increased since a former syncd ended. same is false if the map is another one.
func (s *Set) EndLoad(same bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.saved && same {
		for _, of := range s.series {
			of.addAbsence()
		}
		s.other.addAbsence()
	}
	s.saved = false
	s.clearPresent()
}

// addAbsence adds the increase between was and is.
func (of *series) addAbsence() {
	for i, was := range of.was {
		if n := of.is[i]; n > was {
			of.totals[i] += n - was
		}
	}
	of.was = nil
}

// addPresent adds the value of a present entry to its series. The lock is held.
func (s *Set) addPresent(key, value []byte) {
	if s.layout == nil {
		return
	}
	s.raw = s.layout.raw(s.raw[:0], key)
	of := s.byRaw[string(s.raw)]
	if of == nil {
		if of = s.series[join(s.layout.text(key))]; of == nil {
			of = &s.other
		}
	}
	for i := range s.layout.fields {
		of.is[i] += s.layout.fields[i].Sum(value)
	}
}

func (s *Set) clearPresent() {
	clear(s.other.is)
	for _, of := range s.series {
		clear(of.is)
	}
}
