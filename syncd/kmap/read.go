package kmap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// readBytes is the size of the buffer for an iterator's output: more than the 8
// pages that the kernel hands out at a time (bpf_seq_read), and any entry.
const readBytes = 64 << 10

// ForEach calls fn for every entry of the map, until fn or ctx fails. key and value
// are good during the call only. Entries that change meanwhile may be missed, or seen
// in either state; some may be seen twice.
func (k *Map) ForEach(ctx context.Context, fn func(key, value []byte) error) error {
	k.readMu.Lock()
	defer k.readMu.Unlock()
	var err error
	switch {
	case k.dumper != nil && k.info.HasSpinLock:
		err = k.forEachLocked(ctx, fn)
	case k.dumper != nil:
		size := k.layout.keySize
		err = k.dump(ctx, func(entry []byte) error { return fn(entry[:size], entry[size:]) })
	case k.method.Read == ByBatch:
		err = k.forEachBatch(ctx, fn)
	case k.method.Read == BySingle:
		err = k.forEachSingle(ctx, fn)
	default:
		err = os.ErrClosed
	}
	if err != nil {
		return fmt.Errorf("read map %q: %w", k.info.Name, err)
	}
	return nil
}

// dump runs the iterator over the map and calls fn for every entry it gives.
func (k *Map) dump(ctx context.Context, fn func(entry []byte) error) error {
	size := k.layout.keySize
	if !k.info.HasSpinLock {
		size += k.layout.valueSize
	}
	return iterate(ctx, k.dumper.prog, k.m, func(out []byte) (int, error) {
		used := 0
		for ; len(out)-used >= size; used += size {
			if err := fn(out[used:][:size:size]); err != nil {
				return used, err
			}
		}
		return used, nil
	})
}

// iterate runs an iterator program over the map. fn gets its output, and returns how
// much of it was used: the rest comes again with what follows.
func iterate(ctx context.Context, prog *ebpf.Program, m *ebpf.Map, fn func(out []byte) (int, error)) error {
	it, err := link.AttachIter(link.IterOptions{Program: prog, Map: m})
	if err != nil {
		return fmt.Errorf("attach iterator: %w", err)
	}
	defer release(it)
	r, err := it.Open()
	if err != nil {
		return fmt.Errorf("open iterator: %w", err)
	}
	defer release(r)
	buf := make([]byte, readBytes)
	for have := 0; ctx.Err() == nil; {
		n, err := r.Read(buf[have:])
		switch {
		case errors.Is(err, io.EOF):
			if have > 0 {
				return fmt.Errorf("iterator ended with %d bytes of an entry", have)
			}
			return nil
		case errors.Is(err, unix.EAGAIN): // many elements without output: bpf_seq_read stops at a million
			continue
		case err != nil:
			return fmt.Errorf("read iterator: %w", err)
		}
		used, err := fn(buf[:have+n])
		if err != nil {
			return err
		}
		have = copy(buf, buf[used:have+n])
	}
	return ctx.Err()
}

// tryDumper attaches the iterator once: a kernel without bpf_map_elem iterators
// says so only now.
func (k *Map) tryDumper() error {
	it, err := link.AttachIter(link.IterOptions{Program: k.dumper.prog, Map: k.m})
	if err != nil {
		return fmt.Errorf("attach iterator: %w", err)
	}
	return it.Close()
}

// forEachLocked reads values under their locks, which an iterator cannot take: it
// gives the keys, and the values are looked up.
func (k *Map) forEachLocked(ctx context.Context, fn func(key, value []byte) error) error {
	room := lookupSlots * k.layout.keySize
	keys := make([]byte, 0, room)
	var fnErr error
	flush := func() error {
		err := k.Lookup(keys, func(_ int, key, value []byte, found bool) {
			if found && fnErr == nil {
				fnErr = fn(key, value)
			}
		})
		keys = keys[:0]
		return errors.Join(err, fnErr)
	}
	err := k.dump(ctx, func(key []byte) error {
		keys = append(keys, key...)
		if len(keys) == room {
			return flush()
		}
		return nil
	})
	if err != nil {
		return err
	}
	return flush()
}

func (k *Map) lookupFlags() ebpf.MapLookupFlags {
	if k.info.HasSpinLock {
		return ebpf.LookupLock
	}
	return 0
}

// forEachBatch reads by bpf(2), a few hundred entries a call.
func (k *Map) forEachBatch(ctx context.Context, fn func(key, value []byte) error) error {
	n := 512
	ks, vs := k.layout.keySize, k.layout.valueSize
	keys, values := make([]byte, n*ks), make([]byte, n*vs)
	var in []byte
	// The place in the map is 4 bytes for hash maps, a key for others.
	out := make([]byte, max(ks, 4))
	for ctx.Err() == nil {
		count, err := mapBatch(cmdMapLookupBatch, k.m.FD(), batchArgs{
			keys: keys, values: values, count: n, elemFlags: uint64(k.lookupFlags()), in: in, out: out,
		})
		if errors.Is(err, unix.ENOSPC) { // one bucket holds more than n
			n *= 2
			keys, values = make([]byte, n*ks), make([]byte, n*vs)
			continue
		}
		last := errors.Is(err, unix.ENOENT)
		if err != nil && !last {
			return err
		}
		for i := range count {
			if err := fn(keys[i*ks:][:ks:ks], values[i*vs:][:vs:vs]); err != nil {
				return err
			}
		}
		if last {
			return nil
		}
		in = append(in[:0], out...)
	}
	return ctx.Err()
}

func (k *Map) forEachSingle(ctx context.Context, fn func(key, value []byte) error) error {
	key, next := make([]byte, k.layout.keySize), make([]byte, k.layout.keySize)
	value := make([]byte, k.layout.valueSize)
	var from any // nil: the first key
	for ctx.Err() == nil {
		err := k.m.NextKey(from, next)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		copy(key, next)
		from = key
		err = k.m.LookupWithFlags(key, value, k.lookupFlags())
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := fn(key, value); err != nil {
			return err
		}
	}
	return ctx.Err()
}
