package kmap

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/cilium/ebpf"

	"mapsync/bpf"
	"mapsync/syncd/table"
)

// Way is how one kind of access to a map is done.
type Way string

// The ways, best first. ByBatch and BySingle are bpf(2), which hides data-plane
// writes from the hooks while it works.
const (
	ByIterator Way = "iterator" // BPF iterator over the map's elements
	ByProgram  Way = "program"  // BPF program over entries in shared memory
	ByBatch    Way = "batch"    // bpf(2), many entries a call
	BySingle   Way = "single"   // bpf(2), one entry a call
)

// Method says which ways a map takes, as decided by [Open].
type Method struct {
	Read   Way // the whole map: ByIterator, ByBatch or BySingle
	Lookup Way // given keys: ByProgram or BySingle
	// Write is ByProgram, ByBatch or BySingle: never ByProgram for a per-CPU map, of
	// which a program writes the value of its own CPU only.
	Write Way
	// Reason says why a way is not the best one; nil when all are.
	Reason error
}

// Options are what [Open] needs to know besides the map.
type Options struct {
	// OwnWriter is the per-CPU array of one mark (bpf/own_writer.h) in which the writing
	// program leaves its task while it writes; the hooks read it. Nil: a private one.
	OwnWriter *ebpf.Map
	// Logger gets one line on the ways decided. Nil: discarded.
	Logger *slog.Logger
	// Burst is how many entries are written in one go at most. 0: as many as
	// fit into 4 MiB, at most 8192.
	Burst int
	// Keep are the parts of a value that an update leaves as the map's entry has
	// them. What is written is kept in an entry that is new. They are read without
	// the value's spin lock when a program writes, and under it otherwise; a change
	// in place of a kept part at the moment of the write may be lost.
	Keep []table.Range
	// NoProgram has everything done by bpf(2): to compare, and to test.
	NoProgram bool
}

// Limits of a burst. The bytes bound the locked memory of a map with large
// entries, the entries how long one call works.
const (
	burstBytes   = 4 << 20
	burstEntries = 8192
	lookupSlots  = 1024
)

// Map is one kernel map, opened for reading and writing. Its methods may be
// called by several goroutines at a time, but there is one [Batch] only.
type Map struct {
	m      *ebpf.Map
	info   Info
	layout layout
	method Method
	keep   []table.Range // of Options, in order and apart

	writeErr, lookupErr, readErr error // why not by program

	writeMu sync.Mutex
	writer  *shared // nil: bpf(2)
	bulk    *bulk   // nil unless writer is nil
	batch   Batch

	lookupMu sync.Mutex
	looker   *shared // nil: bpf(2)

	readMu sync.Mutex
	dumper *object // nil: bpf(2)
}

// Open gets m ready: it checks type and sizes (an error wraps [ErrUnsupported])
// and decides how the map is read and written. The caller keeps m, and may close it
// at once. A map that programs may not touch is no error: see [Map.Method].
func Open(m *ebpf.Map, o Options) (*Map, error) {
	info, err := Describe(m)
	if err != nil {
		return nil, fmt.Errorf("open map: %w", err)
	}
	if info.Supported != nil {
		return nil, fmt.Errorf("open map %q (id %d): %w", info.Name, info.ID, info.Supported)
	}
	keep, err := tidyRanges(o.Keep, info.ValueSize)
	if err != nil {
		return nil, fmt.Errorf("open map %q (id %d): %w", info.Name, info.ID, err)
	}
	own, err := m.Clone()
	if err != nil {
		return nil, fmt.Errorf("open map %q (id %d): %w", info.Name, info.ID, err)
	}
	k := &Map{m: own, info: info, layout: newLayout(&info), keep: keep}
	k.method = Method{Read: ByIterator, Lookup: ByProgram, Write: ByProgram}
	k.writeErr, k.lookupErr = k.openWriter(&o), k.openLooker(&o)
	k.readErr = k.openDumper(&o)
	k.method.Reason = errors.Join(k.writeErr, k.lookupErr, k.readErr)
	k.batch = k.newBatch(&o)
	k.log(o.Logger)
	return k, nil
}

// Why a map is not written by a program.
var (
	errNoProgram = errors.New("programs are switched off")
	errPerCPU    = errors.New("a program writes the value of its own CPU only")
	errManyKept  = fmt.Errorf("a program keeps at most %d parts of a value", keepRanges)
)

// fallback is the way without a program.
func fallback() Way {
	if haveBatch() == nil {
		return ByBatch
	}
	return BySingle
}

func (k *Map) burst(o *Options) int {
	n := min(burstEntries, burstBytes/k.layout.stride)
	if o.Burst > 0 {
		n = min(n, o.Burst)
	}
	return max(n, runEntries)
}

func (k *Map) openWriter(o *Options) error {
	var err error
	switch {
	case o.NoProgram:
		err = errNoProgram
	case k.info.CPUs > 0:
		err = errPerCPU
	case len(k.keep) > keepRanges:
		err = errManyKept
	default:
		k.writer, err = k.openQuietWriter(o)
		if err != nil {
			k.writer, err = k.openShared(o.OwnWriter, k.burst(o), bpf.AccessProgMapsyncWrite,
				bpf.AccessMapWriteEntries, bpf.AccessMapWriteCursor, bpf.AccessMapOwnWriter)
		}
	}
	if err != nil {
		k.method.Write = fallback()
		k.bulk = newBulk(k)
		return fmt.Errorf("write by %s: %w", k.method.Write, err)
	}
	return nil
}

func (k *Map) openLooker(o *Options) error {
	err := errNoProgram
	switch {
	case o.NoProgram:
	case k.info.HasSpinLock:
		err = k.openLocked(o)
	case k.info.CPUs > 0:
		err = k.openLookup(o, bpf.AccessProgMapsyncLookupPercpu)
	default:
		err = k.openLookup(o, bpf.AccessProgMapsyncLookup)
	}
	if err != nil {
		k.method.Lookup = BySingle
		return fmt.Errorf("look up by %s: %w", BySingle, err)
	}
	return nil
}

func (k *Map) openLookup(o *Options, program string) (err error) {
	k.looker, err = k.openShared(nil, min(lookupSlots, k.burst(o)), program,
		bpf.AccessMapLookupEntries, bpf.AccessMapLookupCursor)
	return err
}

// openLocked loads the lookup under the value's lock. Without CAP_SYS_ADMIN the map's
// BTF, which has the place of the lock, cannot be read: but the verifier, which
// reads it, refuses every wrong place.
func (k *Map) openLocked(o *Options) error {
	if k.info.LockOffset >= 0 {
		return k.openLookup(o, bpf.AccessProgMapsyncLocked)
	}
	var err error
	for at := 0; at+4 <= k.info.ValueSize; at += 4 {
		k.info.LockOffset = at
		if err = k.openLookup(o, bpf.AccessProgMapsyncLocked); err == nil {
			return nil
		}
		if verdict := new(ebpf.VerifierError); !errors.As(err, &verdict) {
			break // not the place is wrong
		}
	}
	k.info.LockOffset = -1
	return fmt.Errorf("find the spin lock in the value: %w", err)
}

// openDumper loads the iterator. Some values are not read by it: see keysOnly.
func (k *Map) openDumper(o *Options) error {
	err := errNoProgram
	switch {
	case o.NoProgram:
	case k.keysOnly() && k.looker == nil:
		err = errors.New("values that an iterator cannot give cannot be looked up by a program")
	default:
		k.dumper, err = loadObject(k.m, &k.info, nil, objectSpec{
			program: bpf.AccessProgMapsyncDump, maps: []string{bpf.AccessMapScratch}, keysOnly: k.keysOnly(),
		})
		if err == nil {
			err = k.tryDumper()
		}
	}
	if err != nil {
		k.dumper.close()
		k.dumper = nil
		k.method.Read = fallback()
		return fmt.Errorf("read by %s: %w", k.method.Read, err)
	}
	return nil
}

// openShared loads a program that works on an array of entries, and runs it once
// over nothing: what only shows when it runs must show now.
func (k *Map) openShared(own *ebpf.Map, slots int, program, entries, cursor string, more ...string) (*shared, error) {
	want := objectSpec{
		program: program,
		maps:    append(more, bpf.AccessMapTarget, entries, cursor),
		slots:   slots,
	}
	if entries == bpf.AccessMapWriteEntries {
		want.keep = k.keep
	}
	obj, err := loadObject(k.m, &k.info, own, want)
	if err != nil {
		return nil, err
	}
	s, err := newShared(obj, k.layout, entries, cursor)
	if err != nil {
		obj.close()
		return nil, err
	}
	s.steps = max(1, k.info.CPUs)
	if program == bpf.AccessProgMapsyncWriteQuiet {
		s.quiet, err = openQuiet(s)
	} else {
		err = testRun(s.prog.FD(), 1)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("run program: %w", err), s.close())
	}
	return s, nil
}

func (k *Map) log(l *slog.Logger) {
	if l == nil {
		return
	}
	attrs := []any{
		"kernel_map", k.info.Name, "id", k.info.ID, "type", k.info.Type.String(),
		"key_bytes", k.info.KeySize, "value_bytes", k.info.ValueSize,
		"read", k.method.Read, "lookup", k.method.Lookup, "write", k.method.Write, "burst", k.batch.Cap(),
		"quiet", k.quiet(),
	}
	if k.method.Reason != nil {
		l.Warn("opened map, not all of it by programs", append(attrs, "reason", k.method.Reason)...)
		return
	}
	l.Info("opened map", attrs...)
}

// Info returns the description of the map as it was at Open.
func (k *Map) Info() Info { return k.info }

// Method returns how the map is read and written.
func (k *Map) Method() Method { return k.method }

// Close gives back all that Open took. The user of the [Batch] must have stopped.
func (k *Map) Close() error {
	k.writeMu.Lock()
	defer k.writeMu.Unlock()
	// In this order: reading and writing may look up meanwhile.
	k.readMu.Lock()
	defer k.readMu.Unlock()
	k.lookupMu.Lock()
	defer k.lookupMu.Unlock()
	err := errors.Join(k.writer.close(), k.looker.close(), k.m.Close())
	k.dumper.close()
	k.writer, k.looker, k.dumper, k.batch.mem = nil, nil, nil, nil
	return err
}
