// Package counters turns fields of a map's entries into counters with a bounded number of series, for Prometheus.
//
// A [Set] observes the local changes of a table and adds the increases of the fields. It never reads a map. The
// package has no clock and no goroutines.
package counters

import (
	"errors"
	"fmt"
	"slices"

	"mapsync/syncd/schema"
	"mapsync/syncd/schema/export"
)

// Spec describes the counters of a map. All of them have the same labels.
type Spec struct {
	// Labels are the labels of each series, each the content of a field of the key.
	Labels []Label
	// Fields has the field of each counter, unsigned numbers of the value, at least one. The first one decides which
	// series are exported.
	Fields []string
	// Top is the maximum number of series besides Other.
	Top int
	// NoResets is true if a field that falls was not reset: see Set.Changed.
	NoResets bool
}

// Label is a label of a series.
type Label struct {
	Name string `json:"name"`
	// Field is the field of the key, for example daddr or tuple.dport.
	Field string `json:"field"`
}

// ErrField is wrapped by the errors of fields that the types of a map lack, or that cannot be counted.
var ErrField = errors.New("field of a metric is not usable")

// layout is a Spec with the types of a map.
type layout struct {
	schema  *schema.Schema
	printer *export.Printer
	labels  []schema.Path
	fields  []field
}

// field is the field of a counter.
type field struct{ schema.Path }

// wrapsAbove and wrapsBelow are the shares of the maximum of a field between which it wraps, and does not fall.
const (
	wrapsAbove = 0.75
	wrapsBelow = 0.25
)

// maximum returns the highest value of the field.
func (f *field) maximum() uint64 {
	bits := f.Last().BitSize
	if bits == 0 {
		bits = 8 * f.Last().Size
	}
	return ^uint64(0) >> (64 - bits)
}

// wraps reports whether a field with the given maximum passed it between two values. One of 64 bits does not.
func wraps(was, is, maximum uint64) bool {
	return maximum != ^uint64(0) && float64(was) > wrapsAbove*float64(maximum) && float64(is) < wrapsBelow*float64(maximum)
}

// increase returns the increase of a field, in a per-CPU map that of all CPUs, and whether the field, or that of a CPU, is
// lower. from is nil for a new entry.
func (f *field) increase(from, to []byte, resets bool) (sum uint64, decreased bool) {
	if from == nil {
		return f.Sum(to), false
	}
	maximum := f.maximum()
	for i := range f.Count() {
		was, is := f.Number(from, i), f.Number(to, i)
		switch {
		case is >= was:
			sum += is - was
		case wraps(was, is, maximum):
			sum += (is - was) & maximum
		default:
			decreased = true
			if resets && is < was/2 {
				sum += is
			}
		}
	}
	return sum, decreased
}

// decreases reports whether the field, or that of a CPU, is lower in to, or wrapped from to to from.
func (f *field) decreases(from, to []byte) bool {
	maximum := f.maximum()
	for i := range f.Count() {
		was, is := f.Number(from, i), f.Number(to, i)
		if is < was && !wraps(was, is, maximum) || wraps(is, was, maximum) {
			return true
		}
	}
	return false
}

// fits reports whether an entry has the sizes of the types. from may be nil.
func (l *layout) fits(key, from, to []byte) bool {
	return len(key) == l.schema.Key.Size && len(to) == l.schema.Value.Size && (from == nil || len(from) == len(to))
}

func (s *Spec) layout(types *schema.Schema, links schema.Links) (*layout, error) {
	l := &layout{schema: types, printer: export.NewPrinter(types, links)}
	for _, label := range s.Labels {
		path, err := types.Path(label.Field)
		if err == nil && !path.Key {
			err = fmt.Errorf("%s is a field of the value, and labels are fields of the key", label.Field)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: label %s: %w", ErrField, label.Name, err)
		}
		l.labels = append(l.labels, path)
	}
	for _, name := range s.Fields {
		path, err := types.Path(name)
		if err == nil {
			err = countable(name, &path)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: counter: %w", ErrField, err)
		}
		l.fields = append(l.fields, field{path})
	}
	return l, nil
}

// countable returns an error for a field that cannot be a counter.
func countable(name string, path *schema.Path) error {
	f := path.Last()
	inUnion := slices.ContainsFunc(path.Fields, func(f *schema.Field) bool { return f.Kind == schema.KindUnion })
	switch {
	case inUnion:
		return fmt.Errorf("%s is in a union with conditions, and the same bytes of other entries are something else", name)
	case path.Key:
		return fmt.Errorf("%s is a field of the key, and counters are fields of the value", name)
	case f.Kind != schema.KindUint || f.AddressSize() > 0:
		return fmt.Errorf("%s (%s) is not an unsigned integer", name, f.Type)
	}
	return nil
}

// raw appends the content of the labels of a key, as bytes that identify the series.
func (l *layout) raw(dst, key []byte) []byte {
	for i := range l.labels {
		path, half := &l.labels[i], key
		last := len(path.Fields) - 1
		for _, f := range path.Fields[:last] {
			half = f.BytesAt(half, 0)
		}
		f := path.Fields[last]
		if f.BitSize > 0 {
			n := f.NumberAt(half, 0)
			dst = append(dst, byte(n), byte(n>>8), byte(n>>16), byte(n>>24), byte(n>>32), byte(n>>40), byte(n>>48), byte(n>>56))
			continue
		}
		dst = append(dst, half[f.Offset:f.Offset+f.Bytes()]...)
	}
	return dst
}

// text returns the labels of a key, which are printable.
func (l *layout) text(key []byte) []string {
	labels := make([]string, len(l.labels))
	for i := range l.labels {
		labels[i] = string(l.printer.AppendField(nil, &l.labels[i], key))
	}
	return labels
}

// isOther reports whether the labels are those of the series of all others.
func isOther(labels []string) bool {
	return !slices.ContainsFunc(labels, func(s string) bool { return s != Other })
}
