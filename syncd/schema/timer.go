package schema

import "slices"

// HasTimer reports whether the values have a bpf_timer or bpf_wq. The kernel arms it for one entry of one map:
// an entry that another node writes has none that is armed.
func (s *Schema) HasTimer() bool { return hasTimer(s.Value) }

func hasTimer(m *Message) bool {
	return m != nil && slices.ContainsFunc(m.Fields, func(f Field) bool { return f.Timer || hasTimer(f.Message) })
}
