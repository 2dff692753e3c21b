package kmap

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
)

// ReadFunc receives entries that were read together: keys and values are concatenated, and valid only during
// the call. at is the result of the caller's clock before they were read. Changes later than at may be
// missing in them.
type ReadFunc func(at int64, keys, values []byte) error

// Read calls fn with all entries of the map, several at a time, until fn or ctx returns an error. A call
// may have no entries. Entries that change meanwhile may be missed, returned in either state, or returned
// twice. Read never calls now between a read and the fn that receives its entries, so now may also begin a
// [table.Reading]. fn may block for hours: no bucket of the map is locked meanwhile, and other reads and Close do not
// wait for it. After Close, Read returns [os.ErrClosed].
func (k *Map) Read(ctx context.Context, now func() int64, fn ReadFunc) error {
	release, _ := pinToCPUs(k.scanCPUs) // while all of them are offline, the read is not pinned
	defer release()
	read := k.read
	if k.drained != nil {
		read = k.readDrained
	}
	if err := read(ctx, now, k.translated(fn)); err != nil {
		return fmt.Errorf("read map %q: %w", k.info.Name, err)
	}
	return nil
}

// read reads the entries that are stored in the map. A map without a random seed is read again by another method if
// a bucket has too many entries.
func (k *Map) read(ctx context.Context, now func() int64, fn ReadFunc) error {
	fallback := k.readBatches
	method := fallback
	err := k.whileOpen(func() error {
		if k.dumper != nil {
			fallback = k.readByIterator
		}
		switch {
		case k.zero != nil:
			method = k.readElements
		case k.bucketReader != nil:
			method = k.readBuckets
		default:
			method = fallback
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = method(ctx, now, fn)
	if k.zeroSeed() && errors.Is(err, errBucket) {
		err = fallback(ctx, now, fn)
	}
	return err
}

// whileOpen makes one call into the kernel, during which Close waits. A [ReadFunc] runs outside of it.
func (k *Map) whileOpen(call func() error) error {
	k.readMu.Lock()
	defer k.readMu.Unlock()
	if k.closed {
		return os.ErrClosed
	}
	return call()
}

// ForEach calls fn for every entry of the map, like Read. key and value are valid only during the call.
func (k *Map) ForEach(ctx context.Context, fn func(key, value []byte) error) error {
	ks, vs := k.layout.keySize, k.layout.valueSize
	return k.Read(ctx, func() int64 { return 0 }, func(_ int64, keys, values []byte) error {
		for ; len(keys) > 0; keys, values = keys[ks:], values[vs:] {
			if err := fn(keys[:ks:ks], values[:vs:vs]); err != nil {
				return err
			}
		}
		return nil
	})
}

// entries collects entries for a ReadFunc.
type entries struct {
	keys, values []byte
}

func (e *entries) add(key, value []byte) {
	e.keys, e.values = append(e.keys, key...), append(e.values, value...)
}

func (e *entries) reset() { e.keys, e.values = e.keys[:0], e.values[:0] }

// readValues looks up the values of keys, and calls fn with the entries, at least once. It does not count as a use of
// an entry. found is its memory.
func (k *Map) readValues(keys []byte, found *entries, now func() int64, fn ReadFunc) error {
	lookup := k.lookupEntries
	if k.info.Type == ebpf.LRUCPUHash { // the only LRU map whose values are looked up
		lookup = k.lookupUnused
	}
	for first := true; first || len(keys) > 0; first = false {
		n := min(len(keys), lookupSlots*k.layout.keySize)
		found.reset()
		at := now()
		err := lookup(keys[:n], func(_ int, key, value []byte, present bool) {
			if present {
				found.add(key, value)
			}
		})
		if err == nil {
			err = fn(at, found.keys, found.values)
		}
		if err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}
