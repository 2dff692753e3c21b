package kmap

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"mapsync/bpf"
)

const (
	// readRuns is the maximum number of runs of the program in one call: 16,384 empty buckets. The kernel can
	// reschedule between two runs.
	readRuns  = 8
	readTries = 100       // calls without progress, before the read fails
	readEnd   = 1<<32 - 1 // READ_END in bpf/buckets.h
)

// errBucket is the error about a bucket that runs cannot finish. In a hash map with a random seed, no bucket
// has that many entries.
var errBucket = errors.New("a bucket has too many entries, or changes all the time")

// openBucketReader loads the program that reads the map bucket by bucket. With keysOnly, the values that it returns
// are empty.
func (k *Map) openBucketReader(slots int, keysOnly bool) (err error) {
	info := k.info
	if keysOnly {
		info.ValueSize = 0
	}
	part := Map{m: k.m, info: info, layout: newLayout(&info)}
	k.bucketReader, err = part.openSharedProgram(nil, objectSpec{
		program: bpf.AccessProgMapsyncRead, maps: []string{bpf.AccessMapReadState},
		slots: min(readEntries, slots), keysOnly: keysOnly,
	})
	return err
}

func (k *Map) closeBucketReader() error {
	err := k.bucketReader.close()
	k.bucketReader = nil
	return err
}

// readsKeys returns true if the program returns the keys only: it cannot take the lock of a value, and kernels
// differ in where an entry has the pointer to the values of all CPUs.
func (k *Map) readsKeys() bool { return k.info.HasSpinLock || k.info.CPUs > 0 }

// zeroSeed returns true if anyone can choose keys that belong to one bucket.
func (k *Map) zeroSeed() bool { return k.info.Flags&unix.BPF_F_ZERO_SEED != 0 }

// readBuckets reads the entries bucket by bucket.
func (k *Map) readBuckets(ctx context.Context, now func() int64, fn ReadFunc) error {
	if !k.readsKeys() {
		return k.readParts(ctx, now, fn)
	}
	var found entries
	return k.readParts(ctx, func() int64 { return 0 }, func(_ int64, keys, _ []byte) error {
		return k.readValues(keys, &found, now, fn)
	})
}

// readParts runs the program to the end of the map, and calls fn with the entries of each call.
func (k *Map) readParts(ctx context.Context, now func() int64, fn ReadFunc) error {
	var read entries
	for bucket, tries := uint32(0), 0; ctx.Err() == nil; {
		at := now()
		next := bucket
		err := k.whileOpen(func() (err error) {
			next, err = k.bucketReader.readPart(bucket, &read)
			return err
		})
		if err != nil {
			return err
		}
		if err := fn(at, read.keys, read.values); err != nil {
			return err
		}
		switch {
		case next == readEnd:
			return nil
		case next != bucket:
			bucket, tries = next, 0
		case tries == readTries:
			return fmt.Errorf("%w: bucket %d", errBucket, bucket)
		default:
			tries++ // a signal may have ended the runs before the first bucket
		}
	}
	return ctx.Err()
}

// readPart runs the program in one call, from a bucket on, and replaces the content of read. It returns the bucket from
// which the next call continues, or readEnd. Between two calls, another read may use the program.
func (s *sharedProgram) readPart(bucket uint32, read *entries) (next uint32, err error) {
	cursor := (*bpf.AccessCursor)(unsafe.Pointer(&s.cursor[0]))
	atomic.StoreUint32(&cursor.End, uint32(s.slots))
	atomic.StoreUint32(&cursor.Bucket, bucket)
	atomic.StoreUint32(&cursor.Next, 0)
	// A signal ends the runs early.
	if err := s.runs(readRuns); err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
		return bucket, fmt.Errorf("run program: %w", err)
	}
	read.reset()
	for i := range int(atomic.LoadUint32(&cursor.Next)) {
		e := s.entries[i*s.stride:]
		read.add(e[entryKey:][:s.keySize], e[s.valueOffset:][:s.valueSize])
	}
	return atomic.LoadUint32(&cursor.Bucket), nil
}
