package kmap

import (
	"errors"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// syscallWriter writes by bpf(2): the fallback for maps that programs cannot write.
type syscallWriter struct {
	k            *Map
	batched      bool
	flags        uint64
	keys, values []byte // concatenated, as bpf(2) requires
}

func newSyscallWriter(k *Map) *syscallWriter {
	w := &syscallWriter{k: k, batched: k.accessMethods.Write == ByBatch}
	if k.info.HasSpinLock {
		w.flags = uint64(ebpf.UpdateLock)
	}
	return w
}

// run writes the pending entries of b from first to end, without end, and stores the result of each entry in b.
func (w *syscallWriter) run(b *Batch, first, end int) (failed int, err error) {
	for i := first; i < end; {
		if b.op(i) == opNone {
			i++
			continue
		}
		n := 1
		if w.batched {
			for i+n < end && b.op(i+n) == b.op(i) {
				n++
			}
		}
		bad, err := w.runSame(b, i, n)
		if err != nil {
			return 0, err
		}
		failed += bad
		i += n
	}
	return failed, nil
}

// runSame writes n entries of one kind. The kernel stops a batch at the first failed entry, so the
// entries after it are written with the next call.
func (w *syscallWriter) runSame(b *Batch, at, n int) (failed int, err error) {
	remove := b.op(at) == opDelete
	if err := w.collect(b, at, n); err != nil {
		return 0, err
	}
	for done := 0; done < n; done++ {
		count, err := w.call(b, done, n, remove)
		if err == nil && w.batched {
			break
		}
		if err == nil {
			continue
		}
		var errno unix.Errno
		if !errors.As(err, &errno) || isMapError(errno) {
			return 0, err
		}
		done += count
		if remove && (errno == unix.ENOENT || b.array && errno == unix.E2BIG) {
			continue
		}
		b.setRC(at+done, errno)
		failed++
	}
	return failed, nil
}

// isMapError returns true for errors that do not depend on the entry.
func isMapError(errno unix.Errno) bool {
	switch errno {
	case unix.EBADF, unix.EPERM, unix.EINVAL, unix.EFAULT:
		return true
	}
	return false
}

// collect copies the entries into keys and values, with the kept ranges of the entries in the map.
func (w *syscallWriter) collect(b *Batch, at, n int) error {
	w.keys, w.values = w.keys[:0], w.values[:0]
	for i := at; i < at+n; i++ {
		w.keys = append(w.keys, b.key(i)...)
		if b.op(i) == opUpdate || b.array {
			w.values = append(w.values, b.value(i)...)
		}
	}
	if len(w.k.keep) == 0 || b.op(at) == opDelete {
		return nil
	}
	return w.k.lookup(w.keys, func(i int, _, current []byte, found bool) {
		if !found {
			return
		}
		value := w.values[i*b.valueSize:][:b.valueSize]
		for _, r := range w.k.keep {
			copy(value[r.Offset:][:r.Size], current[r.Offset:])
		}
	})
}

// call makes one bpf(2) call for the entries from done on, and returns the number of entries
// written.
func (w *syscallWriter) call(b *Batch, done, n int, remove bool) (int, error) {
	fd, keys := w.k.m.FD(), w.keys[done*b.keySize:]
	remove = remove && !b.array
	switch {
	case w.batched && remove:
		return mapBatch(cmdMapDeleteBatch, fd, batchArgs{keys: keys, count: n - done})
	case w.batched:
		return mapBatch(cmdMapUpdateBatch, fd, batchArgs{
			keys: keys, values: w.values[done*b.valueSize:], count: n - done, elemFlags: w.flags,
		})
	case remove:
		return 0, mapElem(cmdMapDeleteElem, fd, keys, nil, 0)
	}
	return 0, mapElem(cmdMapUpdateElem, fd, keys, w.values, w.flags)
}

// haveBatch returns nil if the kernel supports many entries in one bpf(2) call, otherwise an error.
var haveBatch = sync.OnceValue(func() error {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return err
	}
	defer release(m)
	one := []byte{1, 0, 0, 0}
	_, err = mapBatch(cmdMapUpdateBatch, m.FD(), batchArgs{keys: one, values: one, count: 1})
	return err
})
