package table

import (
	"fmt"
	"slices"
	"testing"
)

// calls is a Counter that lists its calls as text: key, former value and value.
type calls []string

func (c *calls) Changed(key, from, to []byte) {
	was := "-"
	if from != nil {
		was = text(from)
	}
	*c = append(*c, fmt.Sprintf("%s %s>%s", text(key), was, text(to)))
}

func (c *calls) Loaded(key, value []byte) {
	*c = append(*c, fmt.Sprintf("load %s %s", text(key), text(value)))
}

func TestCounterObservesLocalChanges(t *testing.T) {
	var got calls
	r := newRig(t, func(o *Options) {
		o.Counter = &got
		o.LRU = true
		o.Significant = slices.Repeat([]byte{0xff}, valueSize)
		o.Significant[1] = 0
	})
	for _, step := range []struct {
		name string
		do   func()
		want []string
	}{
		{"load", func() { r.load(Accepted, "k", "v1"); r.adopt() }, []string{"load k v1"}},
		{"change", func() { r.local(Accepted, 2*second, "update k w1 packet 0") }, []string{"k v1>w1"}},
		{"change that is not significant", func() { r.local(Unchanged, 3*second, "update k w2 reread 0") }, []string{"k w1>w2"}},
		{"stale change", func() { r.local(Stale, second, "update k x0 packet 0") }, nil},
		{"own write", func() { r.local(Ignored, 4*second, "update k x0 own 0") }, nil},
		{"delete", func() { r.local(Accepted, 5*second, "delete k - packet 0") }, nil},
		{"creation", func() { r.local(Accepted, 6*second, "update k x1 packet 0") }, []string{"k ->x1"}},
		{"eviction", func() { r.local(Ignored, 7*second, "evict k - packet 0") }, nil},
		{"creation of an evicted entry", func() { r.local(Unchanged, 8*second, "update k x2 packet 0") }, []string{"k ->x2"}},
		{"creation in a slot that had a record", func() {
			r.remote(Accepted, 9*second, peer, Version(9*second), "n", "n1")
			r.local(Accepted, 9*second, "update m m1 packet 0")
		}, []string{"m ->m1"}},
		{"peer's record", func() { r.remote(Accepted, 9*second, peer, Version(20*second), "k", "y7") }, nil},
		{"change of a peer's record", func() { r.write(); r.local(Unchanged, 30*second, "update k y9 packet 0") }, []string{"k y7>y9"}},
		{"peer's delete", func() { r.remote(Accepted, 31*second, peer, Version(40*second), "k", "-"); r.write() }, nil},
		{"creation after it", func() { r.local(Accepted, 41*second, "update k z1 packet 0") }, []string{"k ->z1"}},
		{"key that is known when it is loaded", func() { r.load(Unchanged, "k", "z5") }, nil},
	} {
		got = nil
		step.do()
		if !slices.Equal(got, calls(step.want)) {
			t.Errorf("%s: got calls %q, want %q", step.name, got, step.want)
		}
	}
}
