package schema

import "slices"

// ComparedKey returns a mask over a key with the bits that are equal on all nodes with this schema.
// The index of an interface differs between nodes, and so does the number of a meaning.
func (s *Schema) ComparedKey() []byte {
	mask := make([]byte, s.Key.Size)
	s.Key.mark(mask, 0, func(f *Field) bool { return !f.isNamed() })
	return mask
}

// NamesInKey reports whether a key contains an interface or a reference.
func (s *Schema) NamesInKey() bool {
	mask := make([]byte, s.Key.Size)
	s.Key.mark(mask, 0, (*Field).isNamed)
	return slices.ContainsFunc(mask, func(b byte) bool { return b != 0 })
}

// isNamed reports whether the field has a number of this node, which is sent as its name.
func (f *Field) isNamed() bool { return f.Kind == KindIfname || f.Kind == KindReference }

// Compared returns a mask over a value with the bits that are equal on all nodes with this schema
// that have the same record. They are the bits that are sent, with three exceptions. Volatile
// fields may be older or newer under the same version. Time stamps use each node's own clock.
// Indexes of interfaces and numbers of meanings differ between nodes.
func (s *Schema) Compared() []byte {
	mask := make([]byte, s.Value.Size)
	s.Value.mark(mask, 0, func(f *Field) bool {
		return f.Sent() && !f.allVolatile() && f.Kind != KindTime && !f.isNamed()
	})
	s.clearVolatile(mask)
	return mask
}
