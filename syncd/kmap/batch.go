package kmap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/syncd/reference"
)

// ErrBatchFull is returned by [Batch.Add] if the batch has no free entry. The caller calls
// [Map.Apply].
var ErrBatchFull = errors.New("batch is full")

// Batch collects writes in the memory that the writing program reads, which avoids a second copy. A
// map has one Batch, and only one goroutine may use it at a time.
type Batch struct {
	layout
	mem   []byte
	n     int
	cap   int
	array bool // deletes set the value to zero
	// translation is that of the map. Keys and values in the batch are those of the map.
	translation *reference.Translation
	// withoutID are the entries whose meanings have no id, so that the map cannot have them.
	withoutID []int
	// drained is set for a map of sums: writes of this host's keys succeed and do nothing.
	drained *drainedReader
}

func (k *Map) newBatch(o *Options) Batch {
	b := Batch{layout: k.layout, cap: k.burst(o), array: k.zero != nil, drained: k.drained, translation: k.translation}
	if k.writer != nil {
		b.mem = k.writer.entries
	} else {
		b.mem = make([]byte, b.cap*b.stride)
	}
	return b
}

// Batch returns the map's batch after a Reset.
func (k *Map) Batch() *Batch {
	k.batch.Reset()
	return &k.batch
}

// Len returns the number of entries added.
func (b *Batch) Len() int { return b.n }

// Cap returns the maximum number of entries.
func (b *Batch) Cap() int { return b.cap }

// Reset removes all entries from the batch.
func (b *Batch) Reset() { b.n, b.withoutID = 0, b.withoutID[:0] }

// Add copies one write into the batch: an update, or a delete if value is nil. It returns
// ErrBatchFull, or an error if a size differs from the map's.
func (b *Batch) Add(key, value []byte) error {
	if b.n == b.cap {
		return ErrBatchFull
	}
	if len(key) != b.keySize || value != nil && len(value) != b.valueSize {
		return fmt.Errorf("add write of %d + %d bytes to map with %d + %d", len(key), len(value), b.keySize, b.valueSize)
	}
	if b.mem == nil {
		return os.ErrClosed
	}
	e := b.entry(b.n)
	op := uint32(opDelete)
	if value != nil {
		op = opUpdate
		copy(e[b.valueOffset:], value)
	} else if b.array {
		clear(e[b.valueOffset:][:b.valueSize])
	}
	if b.drained != nil && b.drained.owns(key) {
		op = opNone
	}
	copy(e[entryKey:], key)
	if b.translation != nil {
		op = b.translate(e, op)
	}
	binary.NativeEndian.PutUint64(e, uint64(op)) // also sets rc to 0
	b.n++
	return nil
}

// refuse makes entry i one that is not written and has the result of a full map.
func (b *Batch) refuse(i int) {
	binary.NativeEndian.PutUint32(b.entry(i)[entryOp:], opNone)
	b.setRC(i, unix.E2BIG)
}

// Err returns the result of entry i after [Map.Apply]: nil, or the error of the map, a
// [unix.Errno]. The error is E2BIG if the map is full, or an array without that index. Deleting an absent key
// succeeds.
func (b *Batch) Err(i int) error {
	if rc := b.rc(i); rc != 0 {
		return unix.Errno(-rc)
	}
	return nil
}

func (b *Batch) entry(i int) []byte { return b.mem[i*b.stride:][:b.stride:b.stride] }
func (b *Batch) op(i int) uint32    { return binary.NativeEndian.Uint32(b.mem[i*b.stride:]) }
func (b *Batch) rc(i int) int32 {
	return int32(binary.NativeEndian.Uint32(b.mem[i*b.stride+entryRC:]))
}

func (b *Batch) setRC(i int, rc unix.Errno) {
	binary.NativeEndian.PutUint32(b.mem[i*b.stride+entryRC:], uint32(-int32(rc)))
}
func (b *Batch) key(i int) []byte   { return b.entry(i)[entryKey:][:b.keySize] }
func (b *Batch) value(i int) []byte { return b.entry(i)[b.valueOffset:][:b.valueSize] }

// transientTries is the maximum number of attempts for a write with a transient error.
const transientTries = 4

// Apply writes the batch to the map, in order. It returns the number of failed entries, each with
// its own error in [Batch.Err], or an error if the whole map cannot be written. It retries entries
// with a transient error: a bucket that is locked ([LockedBucket]), and ENOMEM for the per-CPU memory
// of a map created with BPF_F_NO_PREALLOC, which the kernel refills shortly after.
func (k *Map) Apply(b *Batch) (failed int, err error) {
	k.writeMu.Lock()
	defer k.writeMu.Unlock()
	if b.mem == nil {
		return 0, fmt.Errorf("write map %q: %w", k.info.Name, os.ErrClosed)
	}
	for try := range transientTries {
		if b.n == 0 {
			return 0, nil
		}
		if failed, err = k.write(b); err != nil {
			return 0, fmt.Errorf("write map %q: %w", k.info.Name, err)
		}
		if failed == 0 || try == transientTries-1 || !b.keepTransient() {
			break
		}
		time.Sleep(time.Millisecond << try)
	}
	for _, i := range b.withoutID {
		b.setRC(i, errWithoutID)
	}
	return b.countFailed(), nil
}

// keepTransient keeps only the entries with a transient error in the batch, and returns true if there are any. An
// entry that a later one of the same key replaces counts as written: a second attempt would undo the later one.
func (b *Batch) keepTransient() (some bool) {
	first := 0
	for first < b.n && !b.transient(first) {
		first++
	}
	if first == b.n {
		return false // as in each burst to a full map
	}
	later := make(map[string]bool, b.n)
	for i := b.n - 1; i >= 0; i-- {
		key := string(b.key(i))
		if b.transient(i) {
			b.setRC(i, 0)
			if !later[key] {
				some, later[key] = true, true
				continue
			}
		}
		later[key] = true
		binary.NativeEndian.PutUint32(b.entry(i)[entryOp:], opNone)
	}
	return some
}

// transient returns true if the last attempt to write entry i failed with a transient error.
func (b *Batch) transient(i int) bool {
	errno := unix.Errno(-b.rc(i))
	return LockedBucket(errno) || errno == unix.ENOMEM || errno == unix.EAGAIN
}

// LockedBucket returns true for the errors of the kernel's htab_lock_bucket. Before 6.15 it returns
// EBUSY if the same CPU holds the lock. Since then the lock is an rqspinlock, which returns EDEADLK,
// or ETIMEDOUT after 250 ms: the holder may be a virtual CPU that the host does not run.
func LockedBucket(errno unix.Errno) bool {
	return errno == unix.EBUSY || errno == unix.EDEADLK || errno == unix.ETIMEDOUT
}

func (b *Batch) countFailed() (n int) {
	for i := range b.n {
		if b.rc(i) != 0 {
			n++
		}
	}
	return n
}
