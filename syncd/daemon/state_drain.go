package daemon

import (
	"time"

	"mapsync/syncd/table"
)

// drainState is a drain in the state file. A drain outlives a restart of syncd, and ends with a reboot: the kernel maps of
// before are gone.
type drainState struct {
	Since  time.Time `json:"since"`
	Forced bool      `json:"forced,omitempty"`
}

// handoverState is a table.Handover in the state file.
type handoverState struct {
	Incarnation uint64 `json:"incarnation"`
	Version     uint64 `json:"version"`
}

// drained returns the drain in the state, or nil.
func (s *state) drained() *drainState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.file.Drain
}

// setDrain stores a drain, or its end if d is nil.
func (s *state) setDrain(d *drainState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file.Drain = d
	s.markUnsaved()
}

// handover returns what this node has handed over of a map.
func (s *state) handover(name string) table.Handover {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.file.Handovers[name]
	return table.Handover{Incarnation: h.Incarnation, Version: table.Version(h.Version)}
}

// setHandover stores what this node has handed over of a map, the zero value for nothing.
func (s *state) setHandover(name string, h table.Handover) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case h == table.Handover{}:
		delete(s.file.Handovers, name)
	case s.file.Handovers == nil:
		s.file.Handovers = make(map[string]handoverState)
		fallthrough
	default:
		s.file.Handovers[name] = handoverState{h.Incarnation, uint64(h.Version)}
	}
	s.markUnsaved()
}
