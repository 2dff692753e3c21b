package schema

// PerCPU returns the schema of a per-CPU map whose entries contain cpus values of s, each padded to
// 8 bytes, as in bpf(2). Both schemas share their fields. The paths of the fields of one CPU's
// value stay the same, without the enclosing field cpu.
func (s *Schema) PerCPU(cpus int) *Schema {
	one := s.Value
	stride := (one.Size + 7) &^ 7
	all := *s
	all.CPUs = cpus
	all.Value = &Message{Name: one.Name + "_cpus", Size: stride * cpus, Fields: []Field{{
		Name: "cpu", Number: 1, Size: stride, Count: cpus, Kind: KindMessage, Message: one,
		Type: one.Name, Doc: "the value of each CPU, in their order",
	}}}
	return &all
}
