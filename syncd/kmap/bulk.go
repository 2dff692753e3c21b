package kmap

import (
	"errors"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// bulk writes by bpf(2): the fallback for maps that no program can write.
type bulk struct {
	k            *Map
	batched      bool
	flags        uint64
	keys, values []byte // as bpf(2) wants them: one after the other
}

func newBulk(k *Map) *bulk {
	w := &bulk{k: k, batched: k.method.Write == ByBatch}
	if k.info.HasSpinLock {
		w.flags = uint64(ebpf.UpdateLock)
	}
	return w
}

// run writes all that is to be done in b, and leaves each entry's outcome there.
func (w *bulk) run(b *Batch) (failed int, err error) {
	for i := 0; i < b.n; {
		if b.op(i) == opNone {
			i++
			continue
		}
		n := 1
		if w.batched {
			for i+n < b.n && b.op(i+n) == b.op(i) {
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

// runSame writes n entries of one kind. The kernel stops a batch at the first
// entry that fails; what comes after it goes into the next call.
func (w *bulk) runSame(b *Batch, at, n int) (failed int, err error) {
	remove := b.op(at) == opDelete
	if err := w.gather(b, at, n); err != nil {
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
		if !errors.As(err, &errno) || wholeMap(errno) {
			return 0, err
		}
		done += count
		if remove && errno == unix.ENOENT {
			continue
		}
		b.setRC(at+done, errno)
		failed++
	}
	return failed, nil
}

// wholeMap tells errors that say nothing about the entry at hand.
func wholeMap(errno unix.Errno) bool {
	switch errno {
	case unix.EBADF, unix.EPERM, unix.EINVAL, unix.EFAULT:
		return true
	}
	return false
}

// gather puts the entries together, with what is to be kept of those in the map.
func (w *bulk) gather(b *Batch, at, n int) error {
	w.keys, w.values = w.keys[:0], w.values[:0]
	for i := at; i < at+n; i++ {
		w.keys = append(w.keys, b.key(i)...)
		if b.op(i) == opUpdate {
			w.values = append(w.values, b.value(i)...)
		}
	}
	if len(w.k.keep) == 0 || len(w.values) == 0 {
		return nil
	}
	return w.k.Lookup(w.keys, func(i int, _, held []byte, found bool) {
		if !found {
			return
		}
		value := w.values[i*b.valueSize:][:b.valueSize]
		for _, r := range w.k.keep {
			copy(value[r.Offset:][:r.Size], held[r.Offset:])
		}
	})
}

// call makes one bpf(2) call for the entries from done on, and returns how many
// of them it did.
func (w *bulk) call(b *Batch, done, n int, remove bool) (int, error) {
	fd, keys := w.k.m.FD(), w.keys[done*b.keySize:]
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

// haveBatch tells whether the kernel takes many entries in one bpf(2) call.
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
