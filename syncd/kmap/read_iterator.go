package kmap

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"mapsync/bpf"
)

// seqBytes is the size of one read from an iterator in the kernel (bpf_seq_read), in bytes. An
// entry must be smaller. readBytes is the size of the buffer for one read and the rest of the
// previous one.
const (
	seqBytes  = 8 * 4096
	readBytes = 2 * seqBytes
)

// openDumper loads the iterator. It reads only keys if an iterator cannot return the values: see
// dumpsKeys.
func (k *Map) openDumper() (err error) {
	k.dumper, err = loadObject(k.m, &k.info, nil, objectSpec{
		program: bpf.AccessProgMapsyncDump, maps: []string{bpf.AccessMapScratch}, keysOnly: k.dumpsKeys(),
	})
	if err != nil {
		return err
	}
	if err := k.dumper.closeMaps(); err != nil {
		return err
	}
	// A kernel without iterators over maps returns its error only now.
	it, err := link.AttachIter(link.IterOptions{Program: k.dumper.prog, Map: k.m})
	if err != nil {
		k.dumper.close()
		k.dumper = nil
		return fmt.Errorf("attach iterator: %w", err)
	}
	return it.Close()
}

// dumpsKeys returns true if an iterator cannot return the values: it cannot take their lock, or they
// are too large for it.
func (k *Map) dumpsKeys() bool {
	return k.info.HasSpinLock || k.layout.keySize+k.layout.valueSize >= seqBytes
}

func (k *Map) readByIterator(ctx context.Context, now func() int64, fn ReadFunc) error {
	ks, size := k.layout.keySize, k.layout.keySize+k.layout.valueSize
	if k.dumpsKeys() {
		var found entries
		return k.iterate(ctx, func(out []byte) (int, error) {
			used := len(out) / ks * ks
			return used, k.readValues(out[:used], &found, now, fn)
		})
	}
	var read entries
	at := now()
	return k.iterate(ctx, func(out []byte) (used int, err error) {
		read.reset()
		for ; len(out)-used >= size; used += size {
			e := out[used:][:size]
			k.cleanPadding(e[ks:])
			read.add(e[:ks], e[ks:])
		}
		err = fn(at, read.keys, read.values)
		at = now() // before the next read
		return used, err
	})
}

// iterate runs the iterator program over the map. fn receives its output and returns the number of
// bytes used. The rest is passed to fn again, in front of the next output.
func (k *Map) iterate(ctx context.Context, fn func(out []byte) (int, error)) error {
	var it *link.Iter
	err := k.whileOpen(func() (err error) {
		it, err = link.AttachIter(link.IterOptions{Program: k.dumper.prog, Map: k.m})
		return err
	})
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
		var n int
		err := k.whileOpen(func() (err error) {
			start := startCall()
			defer CallIterator.ended(start)
			n, err = r.Read(buf[have:])
			return err
		})
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
