package kmap

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// callBuckets is the maximum number of empty buckets that one call of a program passes: HEADS times READ_STEPS in
// bpf/buckets.h for each run.
const callBuckets = readRuns * 32 * 64

// EachKey calls fn for every key of a map, also of one that cannot be replicated. The calls run on the CPUs, as those of
// [Map.Read]; nil: any. fn must not keep the key, and may delete it. Keys that come or go meanwhile may be absent. The error
// wraps [ebpf.ErrIterationAborted] if the map changes too often meanwhile.
func EachKey(ctx context.Context, m *ebpf.Map, cpus *unix.CPUSet, fn func(key []byte) error) error {
	release, _ := pinToCPUs(cpus)
	defer release()
	info, err := Describe(m)
	if err != nil {
		return err
	}
	// For a small map, the program would cost more than it saves.
	if slices.Contains(withBuckets, info.Type) && info.MaxEntries > callBuckets {
		if k, err := openKeys(m, &info); err == nil {
			defer k.closeBucketReader() //nolint:errcheck // only read
			return k.readKeys(ctx, fn)
		}
	}
	return eachNextKey(ctx, m, fn)
}

// withBuckets are the types of maps that the kernel stores in buckets.
var withBuckets = []ebpf.MapType{ebpf.Hash, ebpf.LRUHash, ebpf.PerCPUHash, ebpf.LRUCPUHash, ebpf.HashOfMaps}

// openKeys prepares a map for readKeys only. The caller closes the bucket reader.
func openKeys(m *ebpf.Map, info *Info) (*Map, error) {
	k := &Map{m: m, info: *info}
	return k, k.openBucketReader(readEntries, true)
}

// readKeys calls fn for every key.
func (k *Map) readKeys(ctx context.Context, fn func(key []byte) error) error {
	return k.readParts(ctx, func() int64 { return 0 }, func(_ int64, keys, _ []byte) error {
		for size := k.info.KeySize; len(keys) > 0; keys = keys[size:] {
			if err := fn(keys[:size:size]); err != nil {
				return err
			}
		}
		return nil
	})
}

// eachNextKey calls fn for every key, by bpf(2). A call passes any number of empty buckets.
func eachNextKey(ctx context.Context, m *ebpf.Map, fn func(key []byte) error) error {
	var key []byte // nil: the first key is next
	next := make([]byte, m.KeySize())
	for n := uint32(0); ctx.Err() == nil; n++ {
		err := mapElem(cmdMapGetNextKey, m.FD(), key, next, 0)
		if n > 0 { // not before the next key is known: fn may delete this one
			if err := fn(key); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, unix.ENOENT):
			return nil
		case err != nil:
			return fmt.Errorf("read the next key: %w", err)
		case n == m.MaxEntries(): // after a key that has left, the kernel begins again
			return ebpf.ErrIterationAborted
		}
		key = append(key[:0], next...)
	}
	return ctx.Err()
}
