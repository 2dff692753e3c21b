package kmap

import (
	"context"
	"errors"

	"github.com/cilium/ebpf"
)

// CountEntries returns the number of entries of any hash map, or -1 if it cannot read the map bucket by bucket. For an
// array it returns the number of elements.
func CountEntries(ctx context.Context, m *ebpf.Map, info *Info) int {
	if IsArray(info.Type) {
		return info.MaxEntries
	}
	k, err := openKeys(m, info)
	if err != nil {
		return -1
	}
	n := 0
	err = k.readKeys(ctx, func([]byte) error { n++; return nil })
	if errors.Join(err, k.closeBucketReader()) != nil {
		return -1
	}
	return n
}
