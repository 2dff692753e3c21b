package table

import "slices"

// Variants are masks that depend on the entry: the member of a union decides which bits are a counter, for example.
type Variants struct {
	// Of returns the variant of an entry, an index of Masks. It is called with the table's lock held, and depends on its arguments
	// only.
	Of func(key, value []byte) int
	// Masks are the masks of each variant, in place of those in Options.
	Masks []Masks
}

// Masks are the masks of a variant: see [Options]. Both have the size of a value.
type Masks struct {
	Significant, Compared []byte
}

// fit reports whether the masks fit the values of o.
func (v *Variants) fit(o *Options) bool {
	if v == nil {
		return true
	}
	return v.Of != nil && len(v.Masks) > 0 && !slices.ContainsFunc(v.Masks, func(m Masks) bool {
		one := Options{ValueSize: o.ValueSize, Significant: m.Significant, Carried: o.Carried, Compared: m.Compared}
		return m.Significant == nil || m.Compared == nil || !o.isMask(m.Significant) || one.checkDigest() != nil
	})
}

// masks returns the masks of values, one without variants.
func (o *Options) masks() []Masks {
	if o.Variants == nil {
		return []Masks{{Significant: o.Significant, Compared: o.compared()}}
	}
	return o.Variants.Masks
}

// masksOf returns the masks by which two values of a key are compared. ok is false if they have different variants, which are
// never equal.
func (o *Options) masksOf(key, a, b []byte) (m *Masks, ok bool) {
	v := o.Variants.Of(key, a)
	return &o.Variants.Masks[v], v == o.Variants.Of(key, b)
}

// EqualCompared reports whether two values of a key are equal in all bits that digests cover. It returns false if
// one has a wrong size. It takes no lock: the caller is inside Update or View, or SetDigestKey does not run
// at the same time.
func (t *Table) EqualCompared(key, a, b []byte) bool {
	if len(a) != t.opt.ValueSize || len(b) != t.opt.ValueSize {
		return false
	}
	if m := t.opt.Meanings; m != nil && m.Sum(key, a) != m.Sum(key, b) {
		return false
	}
	if t.opt.Variants != nil {
		m, ok := t.opt.masksOf(key, a, b)
		return ok && equalUnder(m.Compared, a, b)
	}
	return equalUnder(t.digester.mask, a, b)
}

// equalCompared reports whether a record's value and another one are equal in all bits that digests cover.
func (t *Table) equalCompared(s uint32, value []byte) bool {
	return t.EqualCompared(t.key(s), t.value(s), value)
}
