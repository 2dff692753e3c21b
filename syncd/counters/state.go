package counters

import (
	"cmp"
	"slices"
	"time"

	"mapsync/printable"
)

// State is what a restart of syncd needs to continue the counters.
type State struct {
	Labels []Label       `json:"labels"`
	Fields []string      `json:"fields"`
	Series []SeriesState `json:"series"`
	Other  []uint64      `json:"other"` // totals
	Full   bool          `json:"full"`  // there were as many series as possible
}

// SeriesState is the state of a series.
type SeriesState struct {
	Labels []string `json:"labels"`
	Totals []uint64 `json:"totals"`
	Recent uint64   `json:"recent"`

	Phase phase     `json:"phase,omitempty"`
	Until time.Time `json:"until,omitzero"`
}

// State returns the state.
func (s *Set) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := State{Labels: s.spec.Labels, Fields: s.spec.Fields, Other: slices.Clone(s.other.totals), Full: s.full}
	for _, of := range s.series {
		state.Series = append(state.Series, SeriesState{of.labels, slices.Clone(of.totals), of.weight(), of.phase, of.until})
	}
	slices.SortFunc(state.Series, func(a, b SeriesState) int { return slices.Compare(a.Labels, b.Labels) })
	return state
}

// Restore continues the counters of a former syncd. It ignores the state of a specification with other fields or labels,
// and series that cannot be exported. Above Spec.Top it keeps those that increased most.
func (s *Set) Restore(state State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(state.Fields, s.spec.Fields) || !slices.Equal(state.Labels, s.spec.Labels) || len(state.Other) != len(s.spec.Fields) {
		return
	}
	copy(s.other.totals, state.Other)
	list := slices.Clone(state.Series)
	slices.SortStableFunc(list, func(a, b SeriesState) int { return cmp.Compare(b.Recent, a.Recent) })
	for _, from := range list {
		invalid := func(l string) bool { return !printable.Is(l) }
		if len(from.Labels) != len(s.spec.Labels) || len(from.Totals) != len(s.spec.Fields) || isOther(from.Labels) ||
			slices.ContainsFunc(from.Labels, invalid) || s.series[join(from.Labels)] != nil || len(s.series) >= s.spec.Top {
			continue
		}
		of := s.export(from.Labels)
		copy(of.totals, from.Totals)
		of.recent, of.phase, of.until = from.Recent, from.Phase, from.Until
	}
	s.full = s.full || state.Full
}
