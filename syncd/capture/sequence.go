package capture

// sequence finds the events that never arrived: each CPU and slot numbers its
// own from 1, and uses up a number for each attempt.
type sequence struct {
	last []uint64 // by CPU and slot
}

// missing returns how many numbers were passed over before seq. A number that is
// not above the last one (a slot's numbers never repeat) tells of no loss.
func (s *sequence) missing(cpu uint16, slot uint8, seq uint64) uint64 {
	i := int(cpu)*slotsPerCPU + int(slot)%slotsPerCPU
	if i >= len(s.last) {
		s.last = append(s.last, make([]uint64, i+1-len(s.last))...)
	}
	last := s.last[i]
	if seq <= last {
		return 0
	}
	s.last[i] = seq
	return seq - last - 1
}
