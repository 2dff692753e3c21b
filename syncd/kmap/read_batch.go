package kmap

import (
	"context"
	"errors"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// readBatches reads by bpf(2), a few hundred entries per call.
func (k *Map) readBatches(ctx context.Context, now func() int64, fn ReadFunc) error {
	ks, vs := k.layout.keySize, k.layout.valueSize
	n := min(readEntries, burstBytes/(ks+vs))
	keys, values := make([]byte, n*ks), make([]byte, n*vs)
	var in []byte
	// The cursor in the map has 4 bytes for hash maps, and the size of a key for others.
	out := make([]byte, max(ks, 4))
	locked := 0 // calls in a row that stopped at a locked bucket without an entry
	for ctx.Err() == nil {
		at := now()
		var count int
		err := k.whileOpen(func() (err error) {
			count, err = mapBatch(cmdMapLookupBatch, k.m.FD(), batchArgs{
				keys: keys, values: values, count: n, elemFlags: k.lookupFlags(), in: in, out: out,
			})
			return err
		})
		if errors.Is(err, unix.ENOSPC) { // one bucket has more than n entries
			n *= 2
			keys, values = make([]byte, n*ks), make([]byte, n*vs)
			continue
		}
		last := errors.Is(err, unix.ENOENT)
		var errno unix.Errno
		if errors.As(err, &errno) && LockedBucket(errno) && locked < transientTries-1 {
			// The entries before that bucket are valid, and out is its number.
			time.Sleep(time.Millisecond << locked)
			if locked++; count > 0 {
				locked = 0
			}
		} else if err != nil && !last {
			return err
		} else {
			locked = 0
		}
		for i := range count {
			k.cleanPadding(values[i*vs:][:vs])
		}
		if err := fn(at, keys[:count*ks], values[:count*vs]); err != nil || last {
			return err
		}
		in = append(in[:0], out...)
	}
	return ctx.Err()
}

func (k *Map) lookupFlags() uint64 {
	if k.info.HasSpinLock {
		return uint64(ebpf.LookupLock)
	}
	return 0
}
