package schema

// Timers returns the ranges of a value that are a bpf_timer or bpf_wq, in ascending order. The kernel arms it for one
// entry of one map: an entry that another node writes has none that is armed.
func (s *Schema) Timers() []Range {
	return s.Value.elements(func(f *Field) bool { return f.Timer })
}
