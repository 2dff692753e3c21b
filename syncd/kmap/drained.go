package kmap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"mapsync/syncd/table"
)

// Drained makes a Map of the sums of a drained map: a map that a collector empties by lookup-and-delete. The keys of
// sums are those of the drained map, followed by the origin of a host. This host's entries are the sums of what was
// drained and what the drained map has at present. The entries of other origins are as they are in the map of sums.
type Drained struct {
	// Source is the drained map. The caller owns it and closes it after the Map.
	Source *Map
	// Origin ends the keys of this host. A [Batch] does not write them, whatever peers send: scans then find that the
	// record differs from the map, as after a write of the load balancer.
	Origin []byte
	// Added are the ranges of a value that are added, of 4 or 8 bytes each. The other bytes are those of the drained map, or of
	// the sum if the drained map lacks the key.
	Added []table.Range
	// Calls returns the number of calls that have begun to drain the map, and whether all have ended. Between the two,
	// entries are in neither map.
	Calls func() (begun uint64, ended bool)
}

const (
	// drainedPause is the pause before a reread of entries that a call drains, and drainedLimit the time after
	// which the reader gives up.
	drainedPause = time.Millisecond
	drainedLimit = time.Second
)

// ErrAlwaysDrained is the error of a read that finds calls in progress all the time.
var ErrAlwaysDrained = errors.New("the collector drains the map all the time: let it pause between two calls")

// drainedReader reads entries of a map of sums together with those of the drained map. The lock of lookups protects it.
type drainedReader struct {
	*Drained
	keys          []byte // this host's keys, as in the drained map
	present       []byte // their values in the drained map
	found         []bool // whether the drained map has them
	sums          []byte // the values of all keys in the map of sums
	inSums        []bool
	positions     []int // of this host's keys among all
	keySize, size int   // of a sum, bytes
}

func (o *Options) openDrained(info *Info) (*drainedReader, error) {
	d := o.Drained
	if d == nil {
		return nil, nil
	}
	if source := d.Source.Info(); source.KeySize+len(d.Origin) != info.KeySize || source.ValueSize != info.ValueSize {
		return nil, fmt.Errorf("sums of %d + %d bytes do not fit a drained map of %d + %d", info.KeySize, info.ValueSize, source.KeySize, source.ValueSize)
	}
	return &drainedReader{Drained: d, keySize: info.KeySize, size: info.ValueSize}, nil
}

// owns reports whether a key is one of this host.
func (d *Drained) owns(key []byte) bool { return bytes.HasSuffix(key, d.Origin) }

// readDrained is Read for a map of sums: first the entries that have a sum, then those of the drained map.
func (k *Map) readDrained(ctx context.Context, now func() int64, fn ReadFunc) error {
	compose := func(at int64, keys []byte) error {
		var found entries
		err := k.Lookup(keys, func(_ int, key, value []byte, present bool) {
			if present {
				found.add(key, value)
			}
		})
		if err != nil {
			return err
		}
		return fn(at, found.keys, found.values)
	}
	if err := k.read(ctx, now, func(at int64, keys, _ []byte) error { return compose(at, keys) }); err != nil {
		return err
	}
	d := k.drained
	return d.Source.Read(ctx, now, func(at int64, keys, _ []byte) error {
		var sums []byte
		for size := d.Source.Info().KeySize; len(keys) > 0; keys = keys[size:] {
			sums = append(append(sums, keys[:size]...), d.Origin...)
		}
		return compose(at, sums)
	})
}

// lookupDrained is lookup for a map of sums. The lock of lookups is held.
func (k *Map) lookupDrained(keys []byte, fn func(i int, key, value []byte, found bool)) error {
	for done, n := 0, len(keys)/k.layout.keySize; done < n; {
		count := min(n-done, lookupSlots)
		some := keys[done*k.layout.keySize:][:count*k.layout.keySize]
		if err := k.lookupTogether(some); err != nil {
			return err
		}
		k.drained.compose(some, func(i int, key, value []byte, found bool) { fn(done+i, key, value, found) })
		done += count
	}
	return nil
}

// lookupTogether reads keys from both maps, while no call drains entries.
func (k *Map) lookupTogether(keys []byte) error {
	for until := time.Now().Add(drainedLimit); ; time.Sleep(drainedPause) {
		begun, ended := k.drained.Calls()
		if ended {
			if err := k.lookupBoth(keys); err != nil {
				return err
			}
			if after, _ := k.drained.Calls(); after == begun {
				return nil
			}
		}
		if time.Now().After(until) {
			return ErrAlwaysDrained
		}
	}
}

func (k *Map) lookupBoth(keys []byte) error {
	d := k.drained
	d.keys, d.present, d.found, d.sums, d.inSums, d.positions = d.keys[:0], d.present[:0], d.found[:0], d.sums[:0], d.inSums[:0], d.positions[:0]
	empty := make([]byte, d.size)
	err := k.lookupStored(keys, func(i int, key, value []byte, found bool) {
		if !found {
			value = empty
		}
		d.sums, d.inSums = append(d.sums, value...), append(d.inSums, found)
		if d.owns(key) {
			d.keys, d.positions = append(d.keys, key[:d.keySize-len(d.Origin)]...), append(d.positions, i)
		}
	})
	if err != nil || len(d.positions) == 0 {
		return err
	}
	return d.Source.Lookup(d.keys, func(_ int, _, value []byte, found bool) {
		if !found {
			value = empty
		}
		d.present, d.found = append(d.present, value...), append(d.found, found)
	})
}

// compose calls fn with the keys that lookupBoth has read.
func (d *drainedReader) compose(keys []byte, fn func(i int, key, value []byte, found bool)) {
	next := 0
	for i := range d.inSums {
		key, value, found := keys[i*d.keySize:][:d.keySize:d.keySize], d.sums[i*d.size:][:d.size:d.size], d.inSums[i]
		if next < len(d.positions) && d.positions[next] == i {
			if d.found[next] {
				value, found = d.addPresent(value, d.present[next*d.size:][:d.size:d.size]), true
			}
			next++
		}
		if !found {
			value = nil
		}
		fn(i, key, value, found)
	}
}

// addPresent adds a sum to the present value, and returns the latter.
func (d *drainedReader) addPresent(sum, present []byte) []byte {
	for _, r := range d.Added {
		a, b := present[r.Offset:][:r.Size], sum[r.Offset:][:r.Size]
		if r.Size == 4 {
			binary.NativeEndian.PutUint32(a, binary.NativeEndian.Uint32(a)+binary.NativeEndian.Uint32(b))
		} else {
			binary.NativeEndian.PutUint64(a, binary.NativeEndian.Uint64(a)+binary.NativeEndian.Uint64(b))
		}
	}
	return present
}

// Stored reads this host's keys of a map of sums, without what the drained map has, on the CPUs of scans and within
// their budget. fn must not keep the key, and may delete it. Its processor time counts, too.
func (k *Map) Stored(ctx context.Context, budget *ScanBudget, fn func(key []byte) error) error {
	release, _ := pinToCPUs(k.scanCPUs) // as in Read
	defer release()
	budget.awaitResumed(ctx)
	var m meter
	m.start()
	defer m.stop()
	return k.read(ctx, func() int64 { return 0 }, func(_ int64, keys, _ []byte) error {
		for ; len(keys) > 0; keys = keys[k.layout.keySize:] {
			if key := keys[:k.layout.keySize:k.layout.keySize]; k.drained.owns(key) {
				if err := fn(key); err != nil {
					return err
				}
			}
		}
		return budget.await(ctx, &m)
	})
}
