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

// seqBytes is the size of one read from an iterator in the kernel (bpf_seq_read), in bytes. An
// entry must be smaller. readBytes is the size of the buffer for one read and the rest of the
// previous one.
const (
	seqBytes  = 8 * 4096
	readBytes = 2 * seqBytes
)

// ForEach calls fn for every entry of the map, until fn or ctx returns an error. key and value are
// valid only during the call. Entries that change during the iteration may be missed, returned in
// either state, or returned twice.
func (k *Map) ForEach(ctx context.Context, fn func(key, value []byte) error) error {
	k.readMu.Lock()
	defer k.readMu.Unlock()
	var err error
	switch {
	case k.dumper != nil && k.keysOnly():
		err = k.forEachKey(ctx, fn)
	case k.dumper != nil:
		size := k.layout.keySize
		err = k.dump(ctx, func(entry []byte) error {
			k.cleanPadding(entry[size:])
			return fn(entry[:size], entry[size:])
		})
	case k.accessMethods.Read == ByBatch:
		err = k.forEachBatch(ctx, fn)
	case k.accessMethods.Read == BySingle:
		err = k.forEachSingle(ctx, fn)
	default:
		err = os.ErrClosed
	}
	if err != nil {
		return fmt.Errorf("read map %q: %w", k.info.Name, err)
	}
	return nil
}

// dump runs the iterator over the map and calls fn for every entry that it returns.
func (k *Map) dump(ctx context.Context, fn func(entry []byte) error) error {
	size := k.layout.keySize
	if !k.keysOnly() {
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

// iterate runs an iterator program over the map. fn receives its output and returns the number of
// bytes used. The rest is passed to fn again, in front of the next output.
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
		case errors.Is(err, unix.EAGAIN): // many elements without output: bpf_seq_read stops after a million
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

// tryDumper attaches the iterator once, because a kernel without bpf_map_elem iterators returns its
// error only then.
func (k *Map) tryDumper() error {
	it, err := link.AttachIter(link.IterOptions{Program: k.dumper.prog, Map: k.m})
	if err != nil {
		return fmt.Errorf("attach iterator: %w", err)
	}
	return it.Close()
}

// keysOnly returns true if an iterator cannot return the values: it cannot take their lock, or they
// are too large for it.
func (k *Map) keysOnly() bool {
	return k.info.HasSpinLock || k.layout.keySize+k.layout.valueSize >= seqBytes
}

// forEachKey reads the keys by iterator, and looks up their values.
func (k *Map) forEachKey(ctx context.Context, fn func(key, value []byte) error) error {
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

func (k *Map) lookupFlags() uint64 {
	if k.info.HasSpinLock {
		return uint64(ebpf.LookupLock)
	}
	return 0
}

// forEachBatch reads by bpf(2), a few hundred entries per call.
func (k *Map) forEachBatch(ctx context.Context, fn func(key, value []byte) error) error {
	ks, vs := k.layout.keySize, k.layout.valueSize
	n := min(512, burstBytes/(ks+vs))
	keys, values := make([]byte, n*ks), make([]byte, n*vs)
	var in []byte
	// The cursor in the map has 4 bytes for hash maps, and the size of a key for others.
	out := make([]byte, max(ks, 4))
	for ctx.Err() == nil {
		count, err := mapBatch(cmdMapLookupBatch, k.m.FD(), batchArgs{
			keys: keys, values: values, count: n, elemFlags: k.lookupFlags(), in: in, out: out,
		})
		if errors.Is(err, unix.ENOSPC) { // one bucket has more than n entries
			n *= 2
			keys, values = make([]byte, n*ks), make([]byte, n*vs)
			continue
		}
		last := errors.Is(err, unix.ENOENT)
		if err != nil && !last {
			return err
		}
		if err := k.forEachOf(keys[:count*ks], values[:count*vs], fn); err != nil || last {
			return err
		}
		in = append(in[:0], out...)
	}
	return ctx.Err()
}

// forEachOf calls fn for each entry of a batch, until fn returns an error.
func (k *Map) forEachOf(keys, values []byte, fn func(key, value []byte) error) error {
	ks, vs := k.layout.keySize, k.layout.valueSize
	for i := range len(keys) / ks {
		k.cleanPadding(values[i*vs:][:vs])
		if err := fn(keys[i*ks:][:ks:ks], values[i*vs:][:vs:vs]); err != nil {
			return err
		}
	}
	return nil
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
		err = mapElem(cmdMapLookupElem, k.m.FD(), key, value, k.lookupFlags())
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return err
		}
		k.cleanPadding(value)
		if err := fn(key, value); err != nil {
			return err
		}
	}
	return ctx.Err()
}
