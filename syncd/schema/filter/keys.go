package filter

import (
	"bytes"
	"slices"

	"mapsync/syncd/schema"
)

// maxKeys is the maximum number of keys that Keys returns.
const maxKeys = 16

// Keys returns the keys of the entries that can meet all filters, if these determine each field of the key by =. only is
// false if the key has padding: the keys have zeros there, and entries with other padding can meet the filters, too. If the
// filters leave a field open, Keys returns no key.
func Keys(s *schema.Schema, filters []*Filter) (keys [][]byte, only bool) {
	determined := make([]byte, s.Key.Size)
	keys = [][]byte{make([]byte, s.Key.Size)}
	for _, f := range filters {
		if f.op != "=" || !f.field.Key || f.field.Count() != 1 {
			continue
		}
		var next [][]byte
		for _, key := range keys {
			next = append(next, f.operand.keys(f.Links, &f.field, key)...)
		}
		if 0 < len(next) && len(next) <= maxKeys {
			f.field.Mark(determined)
			keys = next
		}
	}
	all, padded := s.KeyFields(determined)
	if !all {
		return nil, false
	}
	return keys, !padded
}

// withNumber returns a copy of a key with a number in the field.
func withNumber(p *schema.Path, key []byte, n uint64) [][]byte {
	key = bytes.Clone(key)
	p.SetNumber(key, n)
	return [][]byte{key}
}

func (o unsignedOperand) keys(_ schema.Links, p *schema.Path, key []byte) [][]byte {
	return withNumber(p, key, uint64(o))
}

func (o signedOperand) keys(_ schema.Links, p *schema.Path, key []byte) [][]byte {
	return withNumber(p, key, uint64(o))
}

// True is each number but 0.
func (o boolOperand) keys(_ schema.Links, p *schema.Path, key []byte) [][]byte {
	if o {
		return nil
	}
	return withNumber(p, key, 0)
}

// Several representations of a number are equal.
func (o floatOperand) keys(schema.Links, *schema.Path, []byte) [][]byte { return nil }

// Several readings of the clock may be equal.
func (o timeOperand) keys(schema.Links, *schema.Path, []byte) [][]byte { return nil }

func (o nameOperand) keys(l schema.Links, p *schema.Path, key []byte) [][]byte {
	names := schema.NamesOf(l, p.Last())
	if names == nil {
		return nil
	}
	index, ok := names.Index(string(o))
	if !ok {
		return nil
	}
	return withNumber(p, key, uint64(index))
}

func (o maskedOperand) keys(_ schema.Links, p *schema.Path, key []byte) (list [][]byte) {
	for _, alternative := range o {
		if slices.ContainsFunc(alternative.mask, func(b byte) bool { return b != 0xff }) {
			return nil // a prefix
		}
		key := bytes.Clone(key)
		p.SetBytes(key, alternative.value)
		list = append(list, key)
	}
	return list
}
