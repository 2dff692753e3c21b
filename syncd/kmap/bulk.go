package kmap

import (
	"errors"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// bulk writes by bpf(2): the fallback for maps that no program can write.
type bulk struct {
	m            *ebpf.Map
	batched      bool
	flags        ebpf.MapUpdateFlags
	keys, values []byte // as bpf(2) wants them: one after the other
}

func newBulk(k *Map) *bulk {
	w := &bulk{m: k.m, batched: k.method.Write == ByBatch}
	if k.info.HasSpinLock {
		w.flags = ebpf.UpdateLock
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
	w.gather(b, at, n)
	for done := 0; done < n; done++ {
		count, err := w.call(b, done, n, remove)
		if err == nil && w.batched {
			break
		}
		if err == nil {
			continue
		}
		errno, ok := errnoOf(err)
		if !ok || wholeMap(errno) {
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

func (w *bulk) gather(b *Batch, at, n int) {
	w.keys, w.values = w.keys[:0], w.values[:0]
	for i := at; i < at+n; i++ {
		w.keys = append(w.keys, b.key(i)...)
		if b.op(i) == opUpdate {
			w.values = append(w.values, b.value(i)...)
		}
	}
}

// call makes one bpf(2) call for the entries from done on, and returns how many
// of them it did.
func (w *bulk) call(b *Batch, done, n int, remove bool) (int, error) {
	keys := w.keys[done*b.keySize:]
	switch {
	case w.batched && remove:
		return mapBatch(cmdMapDeleteBatch, w.m.FD(), batchArgs{keys: keys, count: n - done})
	case w.batched:
		return mapBatch(cmdMapUpdateBatch, w.m.FD(), batchArgs{
			keys: keys, values: w.values[done*b.valueSize:], count: n - done, elemFlags: uint64(w.flags),
		})
	case remove:
		return 0, w.m.Delete(keys)
	}
	return 0, w.m.Update(keys, w.values, w.flags)
}

// errnoOf finds the kernel's error under the library's.
func errnoOf(err error) (unix.Errno, bool) {
	var errno unix.Errno
	switch {
	case errors.As(err, &errno):
		return errno, true
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return unix.ENOENT, true
	case errors.Is(err, ebpf.ErrKeyExist):
		return unix.EEXIST, true
	}
	return 0, false
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
