package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"mapsync/syncd/kmap"
)

// mapSteps measures the ways to write and read a kernel map of n entries.
func mapSteps(ctx context.Context, e *entries, rounds int) ([]Step, error) {
	names := []string{
		"apply by program, new entry", "apply by program, update",
		"apply by bpf(2) batch, new entry", "apply by bpf(2) batch, update",
		"read by buckets", "read by bpf(2) batch lookup", "bpf(2) single lookup", "bpf(2) single update",
	}
	all := make([][]Sample, len(names))
	for range rounds {
		s, err := mapRound(ctx, e)
		if err != nil {
			return nil, err
		}
		for i := range s {
			all[i] = append(all[i], s[i])
		}
	}
	steps := make([]Step, len(names))
	for i, name := range names {
		steps[i] = Step{"map: " + name, median(all[i])}
	}
	return steps, nil
}

// mapRound takes one sample of each step, in the order of mapSteps.
func mapRound(ctx context.Context, e *entries) (samples []Sample, err error) {
	n := len(e.keys)
	var opened []*kmap.Map
	defer func() {
		for _, m := range opened {
			err = errors.Join(err, m.Close())
		}
	}()
	take := func(n int, fn func() error) {
		if err == nil {
			var s Sample
			s, err = measure(n, fn)
			samples = append(samples, s)
		}
	}
	var kernel *ebpf.Map
	for _, o := range []kmap.Options{{Burst: batchEntries}, {Burst: batchEntries, NoProgram: true}} {
		if kernel, err = newMap("steps", n); err != nil {
			return nil, err
		}
		defer kernel.Close()
		m, err := kmap.Open(kernel, o)
		if err != nil {
			return nil, err
		}
		opened = append(opened, m)
		take(n, func() error { return apply(m, e, 0) })
		take(n, func() error { return apply(m, e, 1) })
	}
	for _, m := range opened {
		take(n, func() error { return count(ctx, m, n) })
	}
	const singles = 1 << 17
	some := min(n, singles)
	var v value
	take(some, func() error { return each(e, some, func(i int) error { return kernel.Lookup(&e.keys[i], &v) }) })
	take(some, func() error {
		return each(e, some, func(i int) error { return kernel.Update(&e.keys[i], &e.values[i], ebpf.UpdateAny) })
	})
	return samples, err
}

// apply writes all entries. shift rotates the values by this number of entries, so that a second pass
// changes every value.
func apply(m *kmap.Map, e *entries, shift int) error {
	for at := 0; at < len(e.keys); {
		b := m.Batch()
		for ; b.Len() < b.Cap() && at < len(e.keys); at++ {
			if err := b.Add(e.keys[at][:], e.values[(at+shift)%len(e.keys)][:]); err != nil {
				return err
			}
		}
		failed, err := m.Apply(b)
		if err != nil {
			return err
		}
		if failed > 0 {
			return fmt.Errorf("write a map: it refused %d entries", failed)
		}
	}
	return nil
}

func count(ctx context.Context, m *kmap.Map, n int) error {
	got := 0
	if err := m.ForEach(ctx, func(_, _ []byte) error { got++; return nil }); err != nil {
		return err
	}
	if got < n {
		return fmt.Errorf("read a map: %d of %d entries came", got, n)
	}
	return nil
}

// each calls fn for some entries, with a large distance between two consecutive ones.
func each(e *entries, some int, fn func(i int) error) error {
	stride := strideOf(len(e.keys))
	for n := range some {
		if err := fn(n * stride % len(e.keys)); err != nil {
			return err
		}
	}
	return nil
}
