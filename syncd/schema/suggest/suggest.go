// Package suggest finds fields without a role whose content is valid on one node only: times of a kernel clock, indexes of
// interfaces and network namespaces. Without a role they would arrive unchanged on nodes where they have another meaning.
//
// A suggestion needs the name and the values of a field to agree. If there are no values, the name alone makes a weak
// suggestion. For maps without types, which have no names, the values alone decide.
package suggest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"mapsync/syncd/schema"
)

const (
	// enough is the number of values from which on they prove a suggestion, together with the name.
	enough = 100
	// agreement is the percentage of values that must agree.
	agreement = 95
	// maxDistinct is the number of different values that are counted.
	maxDistinct = 32
	// fewDistinct is the number of different values of a duration or a setting. Times have more.
	fewDistinct = 4
)

// Suggestion is a role for a field.
type Suggestion struct {
	// Field is the path of the field, as in the setting field.
	Field string `json:"field"`
	// Roles are the suggested roles, as in the setting.
	Roles string `json:"roles"`
	// Reason states why, as a clause.
	Reason string `json:"reason"`
	// Weak is true if too few values support the suggestion.
	Weak bool `json:"weak,omitempty"`
	// Display is true for addresses and ports. Without the role they arrive correctly, but are printed as numbers.
	Display bool `json:"display,omitempty"`
	// Wrong is true if the field has a time role that its values contradict.
	Wrong bool `json:"wrong,omitempty"`
}

// Sample collects the values of a map's entries. It is not safe for concurrent use.
type Sample struct {
	host    *Host
	fields  []candidate
	entries int
}

// candidate is a field, or a word of a map without types.
type candidate struct {
	name  string // of the setting
	path  schema.Path
	key   bool
	word  int // offset of a word without a type, or -1
	tests []test
	// values is the number of values, without those that stand for "none" or "never". agree has the number of those that agree
	// with each test, and away the sum of their distances from now, in seconds.
	values   int
	agree    []int
	away     []float64
	distinct map[uint64]bool
}

func newCandidate(name string, path schema.Path, word int, tests []test) candidate {
	return candidate{
		name: name, path: path, key: path.Key, word: word,
		tests: tests, agree: make([]int, len(tests)), away: make([]float64, len(tests)),
	}
}

// NewSample returns a sample without entries. The entries are those that this node's programs have written: entries of peers have
// the values of their nodes. s has the roles from the settings.
func NewSample(s *schema.Schema, host *Host) *Sample {
	sample := &Sample{host: host}
	for _, name := range s.FieldNames() {
		path, err := s.Path(name)
		if err != nil {
			continue
		}
		inUnion := slices.ContainsFunc(path.Fields, func(f *schema.Field) bool { return f.Kind == schema.KindUnion }) // no role local
		switch f := path.Last(); {
		case f.Silenced || f.BitSize > 0 || f.Name == schema.OriginField:
		case f.IsUntyped() && !path.Key: // times are in values
			sample.addWords(path)
		default:
			sample.fields = append(sample.fields, newCandidate(settingName(s, name), path, -1, testsOf(f, path.Key, inUnion)))
		}
	}
	return sample
}

// settingName returns the path of a field in the settings: without value. and the field of the CPUs.
func settingName(s *schema.Schema, name string) string {
	name = strings.TrimPrefix(name, "value.")
	if s.CPUs > 0 {
		name = strings.TrimPrefix(name, "cpu.")
	}
	return name
}

// addWords adds the aligned words of a field of bytes without a type.
func (s *Sample) addWords(path schema.Path) {
	f := path.Last()
	for at := (f.Offset + 7) &^ 7; at+8 <= f.Offset+f.Size; at += 8 {
		s.fields = append(s.fields, newCandidate(fmt.Sprintf("@%d:8", at), path, at-f.Offset, wordTests))
	}
}

// Add adds an entry of this node. It reads key and value only during the call.
func (s *Sample) Add(key, value []byte) {
	s.entries++
	for i := range s.fields {
		c := &s.fields[i]
		if len(c.tests) == 0 {
			continue
		}
		half, ok := c.path.Half(key, value)
		if !ok || !c.path.Present(key, value) {
			continue
		}
		if c.word >= 0 {
			c.add(s.host, 8, c.path.Word(half, c.word))
			continue
		}
		size := c.path.Last().Size
		for e := range c.path.Count() {
			c.add(s.host, size, c.path.Number(half, e))
		}
	}
}

// add adds one value.
func (c *candidate) add(h *Host, size int, v uint64) {
	v &= 1<<(8*size-1)<<1 - 1
	if v == 0 || v == 1<<(8*size-1)<<1-1 {
		return // not set, or never
	}
	c.values++
	if c.distinct == nil {
		c.distinct = make(map[uint64]bool)
	}
	if len(c.distinct) < maxDistinct {
		c.distinct[v] = true
	}
	for i := range c.tests {
		if away, ok := c.tests[i].agrees(h, size, v); ok {
			c.agree[i]++
			c.away[i] += time.Duration(away).Seconds()
		}
	}
}

// Entries returns the number of entries in the sample.
func (s *Sample) Entries() int { return s.entries }

// Suggestions returns the suggestions for the fields, in their order.
func (s *Sample) Suggestions() []Suggestion {
	var list []Suggestion
	for i := range s.fields {
		if x, ok := s.fields[i].suggestion(s.entries); ok {
			list = append(list, x)
		}
	}
	return list
}

// suggestion returns the suggestion for a field; ok is false if there is none.
func (c *candidate) suggestion(entries int) (x Suggestion, ok bool) {
	f := c.path.Last()
	best := c.best()
	x = Suggestion{Field: c.name, Weak: c.values < enough}
	switch {
	case c.word >= 0:
		x.Reason = c.evidence(best)
		x.Roles = c.tests[max(best, 0)].role
		return x, best >= 0 && !x.Weak && len(c.distinct) > fewDistinct
	case f.Roles&schema.RoleTime != 0:
		return c.contradiction()
	case len(c.tests) == 0:
		return c.display()
	case best >= 0 && (!c.tests[best].clock || c.values < enough || len(c.distinct) > fewDistinct):
		x.Roles, x.Reason = c.tests[best].roles(f), c.evidence(best)
		return x, true
	case c.values == 0 && entries == 0:
		x.Roles, x.Reason = c.byName()
		return x, x.Roles != ""
	}
	return c.display()
}

// best returns the test with which enough values agree, or -1. If they agree with several clocks, it is the one whose times are
// nearest to now; ktime and boottime differ only by the time for which the machine slept, so the first one is best.
func (c *candidate) best() int {
	const nanoseconds = schema.RoleKtime | schema.RoleBoottime
	best := -1
	for i, n := range c.agree {
		if n == 0 || n*100 < c.values*agreement || c.tests[i].role == "" {
			continue
		}
		alike := best >= 0 && c.tests[i].bit&nanoseconds != 0 && c.tests[best].bit&nanoseconds != 0
		if best < 0 || !alike && c.away[i] < c.away[best] {
			best = i
		}
	}
	return best
}

// evidence returns how many values agree with a test.
func (c *candidate) evidence(i int) string {
	if i < 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d values are %s", c.agree[i], c.values, c.tests[i].meaning)
}

// contradiction returns the suggestion for a field whose values contradict its time role.
func (c *candidate) contradiction() (x Suggestion, ok bool) {
	role := c.path.Last().Roles & schema.RoleTime
	own := slices.IndexFunc(c.tests, func(t test) bool { return t.bit == role })
	far := slices.IndexFunc(c.tests, func(t test) bool { return t.bit == 0 })
	if c.values < enough || own < 0 || c.agree[own]*100 > c.values*(100-agreement) {
		return x, false
	}
	x = Suggestion{Field: c.name, Wrong: true}
	switch best := c.best(); {
	case best >= 0 && len(c.distinct) > fewDistinct:
		x.Roles = c.tests[best].roles(c.path.Last())
		x.Reason = c.evidence(best) + ", not " + c.tests[own].meaning
	case far >= 0 && c.agree[far]*100 >= c.values*agreement:
		x.Roles = "none"
		x.Reason = fmt.Sprintf("%d of %d values are years after now as %s", c.agree[far], c.values, c.tests[own].meaning)
	default:
		return x, false
	}
	return x, true
}
