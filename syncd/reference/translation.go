package reference

import (
	"bytes"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"mapsync/syncd/schema"
)

// Translation translates the entries of one replicated map between the kernel map, which has ids, and the table, which has the numbers
// of their meanings. It implements kmap.Translation and table.Meanings, and the names of a schema.
//
// One goroutine, that of the writer of the map, may call Switch. The other methods are safe for concurrent use.
type Translation struct {
	names map[string]*Names
	// places are the ids of an entry of each variant. keyPlaces are those in the key, the same for all variants.
	places    [][]place
	keyPlaces []place
	variantOf func(key, value []byte) int // nil: one variant
	sets      []*Names                    // the Names of all places, each once
	// contents are the contents by which entries are translated, in the order of sets.
	contents atomic.Pointer[[]*Content]
}

// place is an id in an entry.
type place struct {
	schema.ReferencePlace
	set int // index in Translation.sets
}

// bytes returns the bytes of the id.
func (p *place) bytes(key, value []byte) []byte {
	if p.Key {
		value = key
	}
	return value[p.Offset:][:p.Size]
}

// NewTranslation returns the translation for entries of s. names has the meanings of each reference of s. The error names a
// reference whose ids do not fit into the field.
func NewTranslation(s *schema.Schema, names map[string]*Names) (*Translation, error) {
	t := &Translation{names: names, variantOf: s.VariantOf()}
	index := make(map[string]int)
	for v := range s.Variants() {
		var list []place
		for _, p := range s.Variant(v).References() {
			n := names[p.Reference]
			if n == nil {
				return nil, fmt.Errorf("reference %s: its map is not watched", p.Reference)
			}
			if n.size > p.Size {
				return nil, fmt.Errorf("reference %s: the field has %d bytes, and the keys of that map have %d", p.Reference, p.Size, n.size)
			}
			at, ok := index[p.Reference]
			if !ok {
				at = len(t.sets)
				index[p.Reference], t.sets = at, append(t.sets, n)
			}
			list = append(list, place{p, at})
			if p.Key && v == 0 {
				t.keyPlaces = append(t.keyPlaces, place{p, at})
			}
		}
		t.places = append(t.places, list)
	}
	t.Switch()
	return t, nil
}

// Reference returns the meanings of a reference, or nil if the map has no such field, or if t is nil. It implements schema.References.
func (t *Translation) Reference(reference string) schema.Links {
	if t == nil || t.names[reference] == nil {
		return nil
	}
	return t.names[reference]
}

// InKeys reports whether keys have ids.
func (t *Translation) InKeys() bool { return len(t.keyPlaces) > 0 }

// placesOf returns the ids of an entry. value is nil if only the key counts.
func (t *Translation) placesOf(key, value []byte) []place {
	switch {
	case value == nil:
		return t.keyPlaces
	case t.variantOf == nil:
		return t.places[0]
	}
	return t.places[t.variantOf(key, value)]
}

// FromKernel replaces the ids in an entry of the kernel map by numbers. value may be nil.
func (t *Translation) FromKernel(key, value []byte) {
	t.fromKernel(*t.contents.Load(), key, value)
}

func (t *Translation) fromKernel(contents []*Content, key, value []byte) {
	for _, p := range t.placesOf(key, value) {
		id := p.bytes(key, value)
		store(id, uint64(t.sets[p.set].numberOf(contents[p.set], load(id), p.Key)))
	}
}

// ToKernel replaces the numbers in an entry of the table by ids. value may be nil. If ok is false, the kernel map cannot have the
// entry: one of the numbers has no id. stale reports that the kernel map may nevertheless have an entry of the key, with an id that means
// something else now.
//
// An id in a key stays valid until it means something else: the entry keeps its key.
func (t *Translation) ToKernel(key, value []byte) (ok, stale bool) {
	contents := *t.contents.Load()
	ok = true
	keyOK := true
	for _, p := range t.placesOf(key, value) {
		number := p.bytes(key, value)
		id, found, old := t.sets[p.set].idOf(contents[p.set], uint32(load(number)))
		if p.Key && !found {
			_, known := contents[p.set].former[uint32(load(number))]
			found = known && !old
			keyOK = keyOK && found
		}
		if found = found && (p.Size == 8 || id>>(8*p.Size) == 0); !found {
			ok, stale = false, stale || old
			continue
		}
		store(number, id)
	}
	return ok, stale && keyOK
}

// Pending reports whether the meaning of an id has changed since Switch.
func (t *Translation) Pending() bool {
	contents := *t.contents.Load()
	for i, n := range t.sets {
		if n.Content() != contents[i] {
			return true
		}
	}
	return false
}

// Changes are the ids whose meaning has changed and that the entries of the map do not have yet.
type Changes struct {
	t        *Translation
	contents []*Content
	changed  []map[uint32]bool
}

// Changes returns the changes since the last Switch.
func (t *Translation) Changes() *Changes {
	c := &Changes{t: t}
	old := *t.contents.Load()
	for i, n := range t.sets {
		now := n.Content()
		c.contents, c.changed = append(c.contents, now), append(c.changed, n.changed(old[i], now))
	}
	return c
}

// Any reports whether an entry can be affected at all.
func (c *Changes) Any() bool {
	for _, changed := range c.changed {
		if len(changed) > 0 {
			return true
		}
	}
	return false
}

// Affects reports whether an entry of the table has a number whose id has changed. value is nil if only the key counts.
func (c *Changes) Affects(key, value []byte) bool {
	for _, p := range c.t.placesOf(key, value) {
		if c.changed[p.set][uint32(load(p.bytes(key, value)))] {
			return true
		}
	}
	return false
}

// After returns the key, after the changes, of the entry that the kernel map has under a key of the table before them. ok is false if it can
// have none.
func (c *Changes) After(key []byte) (after []byte, ok bool) {
	after = bytes.Clone(key)
	if ok, _ := c.t.ToKernel(after, nil); !ok {
		return nil, false
	}
	c.t.fromKernel(c.contents, after, nil)
	return after, true
}

// Known reports whether all numbers in a key have a meaning.
func (c *Changes) Known(key []byte) bool {
	for _, p := range c.t.keyPlaces {
		number := uint32(load(p.bytes(key, nil)))
		if _, ok := c.t.sets[p.set].Name(number); !ok && number != 0 {
			return false
		}
	}
	return true
}

// Since returns a wall time in nanoseconds at which the changes had not happened yet.
func (c *Changes) Since() int64 {
	since := int64(math.MaxInt64)
	for i, old := range *c.t.contents.Load() {
		if len(c.changed[i]) > 0 {
			since = min(since, old.seen.Load())
		}
	}
	return since
}

// Apply makes the changes effective: entries are translated by the contents of the changes from now on.
func (c *Changes) Apply() { c.t.contents.Store(&c.contents) }

// Switch makes all changes effective.
func (t *Translation) Switch() {
	contents := make([]*Content, len(t.sets))
	for i, n := range t.sets {
		contents[i] = n.Content()
	}
	t.contents.Store(&contents)
}

// Sum returns a hash of the meanings of an entry of the table that is equal on all nodes. value may be nil.
func (t *Translation) Sum(key, value []byte) (sum uint64) {
	for i, p := range t.placesOf(key, value) {
		var b [16]byte
		store(b[:8], t.sets[p.set].sum(uint32(load(p.bytes(key, value)))))
		store(b[8:], uint64(i))
		sum += xxh3.Hash(b[:])
	}
	return sum
}

// Append appends bytes that identify an entry of the table, whatever numbers its meanings have. value may be nil.
func (t *Translation) Append(dst, key, value []byte) []byte {
	start := len(dst)
	dst = append(append(dst, key...), value...)
	for _, p := range t.placesOf(key, value) {
		number := uint32(load(p.bytes(key, value)))
		at := start + p.Offset
		if !p.Key {
			at += len(key)
		}
		clear(dst[at:][:p.Size])
		dst = t.sets[p.set].appendMeaning(dst, number)
	}
	return dst
}

// Mark calls mark for each number of an entry that belongs to names.
func (t *Translation) Mark(names *Names, key, value []byte, mark func(number uint32)) {
	for _, p := range t.placesOf(key, value) {
		if t.sets[p.set] == names {
			mark(uint32(load(p.bytes(key, value))))
		}
	}
}
