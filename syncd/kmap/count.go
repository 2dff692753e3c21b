package kmap

import (
	"context"
	"errors"

	"github.com/cilium/ebpf"
)

// countEntries returns the number of entries of any hash map, or -1 if it cannot read the map bucket by bucket. For an
// array it returns the number of elements.
func countEntries(ctx context.Context, m *ebpf.Map, info *Info) int {
	if IsArray(info.Type) {
		return info.MaxEntries
	}
	keys := *info
	keys.ValueSize = 0
	k := &Map{m: m, info: keys, layout: newLayout(&keys)}
	if k.openBucketReader(readEntries, true) != nil {
		return -1
	}
	n := 0
	err := k.readParts(ctx, func() int64 { return 0 }, func(_ int64, keys, _ []byte) error {
		n += len(keys) / info.KeySize
		return nil
	})
	if errors.Join(err, k.closeBucketReader()) != nil {
		return -1
	}
	return n
}
