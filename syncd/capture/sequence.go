package capture

// sequence detects events that did not arrive. Each CPU and slot numbers its events from 1, and
// uses one number per attempt.
type sequence struct {
	last []uint64 // by CPU and slot
}

// missing returns the number of sequence numbers that were skipped before seq. The numbers of a
// slot never repeat, so a number at or below the last one counts as no loss.
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
