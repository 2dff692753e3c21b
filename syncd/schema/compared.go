package schema

// ComparedKey returns a mask over a key: the bits that all nodes with this schema hold
// alike. The index of an interface is each node's own.
func (s *Schema) ComparedKey() []byte {
	mask := make([]byte, s.Key.Size)
	s.Key.mark(mask, 0, func(f *Field) bool { return f.Kind != KindIfname })
	return mask
}

// Compared returns a mask over a value: the bits that all nodes with this schema hold
// alike once they know the same record. They are those that are sent, but for
// volatile fields, of which nodes hold older and newer ones under the same version, time
// stamps, which are each node's own clock's, and the indexes of interfaces.
func (s *Schema) Compared() []byte {
	mask := make([]byte, s.Value.Size)
	s.Value.mark(mask, 0, func(f *Field) bool {
		return f.Sent() && f.Roles&RoleVolatile == 0 && f.Kind != KindTime && f.Kind != KindIfname
	})
	return mask
}
