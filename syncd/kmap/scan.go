package kmap

import (
	"context"
	"fmt"
)

// Scan calls fn with every entry of the map, several at a time, like [Map.ForEach]. at is the
// result of now before they were read: changes later than at may be missing in them. Scan never
// calls now between a read and the fn that receives its entries, so now may also begin a
// [table.Reading]. fn may block between the reads: no bucket of the map is locked meanwhile. keys
// and values are concatenated, and valid only during the call.
func (k *Map) Scan(ctx context.Context, now func() int64, fn func(at int64, keys, values []byte) error) error {
	k.readMu.Lock()
	defer k.readMu.Unlock()
	var err error
	switch {
	case k.dumper == nil:
		err = k.scanWithoutIterator(ctx, now, fn)
	case k.keysOnly():
		err = k.scanKeys(ctx, now, fn)
	default:
		err = k.scanEntries(ctx, now, fn)
	}
	if err != nil {
		return fmt.Errorf("scan map %q: %w", k.info.Name, err)
	}
	return nil
}

// split collects keys and values of entries separately.
type split struct {
	keys, values []byte
}

func (s *split) add(key, value []byte) {
	s.keys, s.values = append(s.keys, key...), append(s.values, value...)
}

func (s *split) reset() { s.keys, s.values = s.keys[:0], s.values[:0] }

func (k *Map) scanEntries(ctx context.Context, now func() int64, fn func(at int64, keys, values []byte) error) error {
	var s split
	ks, size := k.layout.keySize, k.layout.keySize+k.layout.valueSize
	at := now()
	return iterate(ctx, k.dumper.prog, k.m, func(out []byte) (used int, err error) {
		s.reset()
		for ; len(out)-used >= size; used += size {
			e := out[used:][:size]
			k.cleanPadding(e[ks:])
			s.add(e[:ks], e[ks:])
		}
		err = fn(at, s.keys, s.values)
		at = now() // before the next read
		return used, err
	})
}

// scanKeys reads the keys by iterator, and looks up their values.
func (k *Map) scanKeys(ctx context.Context, now func() int64, fn func(at int64, keys, values []byte) error) error {
	var s split
	ks := k.layout.keySize
	return iterate(ctx, k.dumper.prog, k.m, func(out []byte) (int, error) {
		used := len(out) / ks * ks
		for rest := out[:used]; len(rest) > 0; {
			n := min(len(rest), lookupSlots*ks)
			s.reset()
			at := now()
			err := k.Lookup(rest[:n], func(_ int, key, value []byte, found bool) {
				if found {
					s.add(key, value)
				}
			})
			if err == nil {
				err = fn(at, s.keys, s.values)
			}
			if err != nil {
				return 0, err
			}
			rest = rest[n:]
		}
		return used, nil
	})
}

// scanWithoutIterator scans a map without an iterator. It reports all entries with the time of the
// start of the scan. This causes more rereads, but no wrong results.
func (k *Map) scanWithoutIterator(ctx context.Context, now func() int64, fn func(at int64, keys, values []byte) error) error {
	var s split
	at := now()
	flush := func() error {
		err := fn(at, s.keys, s.values)
		s.reset()
		return err
	}
	add := func(key, value []byte) error {
		s.add(key, value)
		if len(s.keys) < chunk*k.layout.keySize {
			return nil
		}
		return flush()
	}
	each := k.forEachSingle
	if k.accessMethods.Read == ByBatch {
		each = k.forEachBatch
	}
	if err := each(ctx, add); err != nil {
		return err
	}
	return flush()
}
