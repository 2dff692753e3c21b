package kmap

import (
	"context"
	"fmt"

	"github.com/cilium/ebpf"

	"mapsync/bpf"
)

// counter counts the entries of any hash map by an iterator without output.
type counter struct{ *object }

// newCounter loads the counting program. The caller calls close.
func newCounter() (*counter, error) {
	o, err := loadObject(nil, &Info{}, nil, objectSpec{
		program: bpf.AccessProgMapsyncCount, maps: []string{bpf.AccessMapVisited},
	})
	if err != nil {
		return nil, fmt.Errorf("count entries: %w", err)
	}
	return &counter{o}, nil
}

// count returns the number of entries of m, or -1 on error. c may be nil.
func (c *counter) count(ctx context.Context, m *ebpf.Map) int {
	if c == nil {
		return -1
	}
	visited := c.coll.Maps[bpf.AccessMapVisited]
	var zero uint32
	var n uint64
	if visited.Put(zero, n) != nil {
		return -1
	}
	err := iterate(ctx, c.prog, m, func(out []byte) (int, error) { return len(out), nil })
	if err != nil || visited.Lookup(zero, &n) != nil {
		return -1
	}
	return int(n)
}

func (c *counter) close() {
	if c != nil {
		c.object.close()
	}
}
