package schema

// ComparedKey returns a mask over a key with the bits that are equal on all nodes with this schema.
// The index of an interface differs between nodes.
func (s *Schema) ComparedKey() []byte {
	mask := make([]byte, s.Key.Size)
	s.Key.mark(mask, 0, func(f *Field) bool { return f.Kind != KindIfname })
	return mask
}

// Compared returns a mask over a value with the bits that are equal on all nodes with this schema
// that have the same record. They are the bits that are sent, with three exceptions. Volatile
// fields may be older or newer under the same version. Time stamps use each node's own clock.
// Indexes of interfaces differ between nodes.
func (s *Schema) Compared() []byte {
	mask := make([]byte, s.Value.Size)
	s.Value.mark(mask, 0, func(f *Field) bool {
		return f.Sent() && f.Roles&RoleVolatile == 0 && f.Kind != KindTime && f.Kind != KindIfname
	})
	return mask
}
