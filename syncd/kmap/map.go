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

// AccessMethod is the method of one kind of access to a map.
type AccessMethod string

// The access methods, best first. ByBatch and BySingle use bpf(2), which hides data-plane writes
// from the hooks during the call.
const (
	ByIterator AccessMethod = "iterator" // BPF iterator over the map's elements
	ByProgram  AccessMethod = "program"  // BPF program over entries in shared memory
	ByBatch    AccessMethod = "batch"    // bpf(2), many entries per call
	BySingle   AccessMethod = "single"   // bpf(2), one entry per call
)

// AccessMethods are the access methods of a map, as selected by [Open].
type AccessMethods struct {
	Read   AccessMethod // the whole map: ByIterator, ByBatch or BySingle
	Lookup AccessMethod // given keys: ByProgram or BySingle
	// Write is ByProgram, ByBatch or BySingle. It is never ByProgram for a per-CPU map, because a
	// program writes only the value of its own CPU.
	Write AccessMethod
	// Reason is the reason why a method is not the best one. It is nil if all are.
	Reason error
}

// Options are the options of [Open].
type Options struct {
	// OwnWriteMarks is the per-CPU array (bpf/own_write_marks.h) in which the writing program
	// stores its task while it writes. The hooks read it. Nil: a private array.
	OwnWriteMarks *ebpf.Map
	// Logger receives one line with the selected access methods. Nil: discarded.
	Logger *slog.Logger
	// Burst is the maximum number of entries per write. 0: the number that fits into 4 MiB, at most
	// 8192.
	Burst int
	// Keep are the ranges of a value that an update keeps as they are in the map. For a new entry,
	// they are written like the rest of the value. A writing program reads them without the value's
	// spin lock, bpf(2) reads them under it. A change in place of a kept range during the write may
	// be lost.
	Keep []table.Range
	// NoProgram selects bpf(2) for all access, for comparisons and tests.
	NoProgram bool
}

// Limits of a burst. The limit in bytes bounds the locked memory of a map with large entries. The
// limit of entries bounds the duration of one call.
const (
	burstBytes   = 4 << 20
	burstEntries = 8192
	lookupSlots  = 1024
)

// Map is one kernel map, opened for reading and writing. Its methods are safe for concurrent use,
// but only one goroutine may use its [Batch].
type Map struct {
	m             *ebpf.Map
	info          Info
	layout        layout
	accessMethods AccessMethods
	keep          []table.Range // of Options: ascending, without adjacent or overlapping ranges

	writeErr, lookupErr, readErr error // reasons for the fallback to bpf(2); nil: by program

	writeMu       sync.Mutex
	writer        *sharedProgram // nil: bpf(2)
	syscallWriter *syscallWriter // nil unless writer is nil
	batch         Batch

	lookupMu      sync.Mutex
	lookupProgram *sharedProgram // nil: bpf(2)

	readMu sync.Mutex
	dumper *object // nil: bpf(2)
}

// Open prepares m for access. It checks type and sizes (an error wraps [ErrUnsupported]) and
// selects the access methods. The caller keeps m and may close it at once. If programs may not
// access the map, Open succeeds with bpf(2): see [Map.AccessMethods].
func Open(m *ebpf.Map, o Options) (*Map, error) {
	info, err := Describe(m)
	if err != nil {
		return nil, fmt.Errorf("open map: %w", err)
	}
	if info.Unsupported != nil {
		return nil, fmt.Errorf("open map %q (id %d): %w", info.Name, info.ID, info.Unsupported)
	}
	keep, err := mergeRanges(o.Keep, info.ValueSize)
	if err != nil {
		return nil, fmt.Errorf("open map %q (id %d): %w", info.Name, info.ID, err)
	}
	own, err := m.Clone()
	if err != nil {
		return nil, fmt.Errorf("open map %q (id %d): %w", info.Name, info.ID, err)
	}
	k := &Map{m: own, info: info, layout: newLayout(&info), keep: keep}
	k.accessMethods = AccessMethods{Read: ByIterator, Lookup: ByProgram, Write: ByProgram}
	k.writeErr, k.lookupErr = k.openWriter(&o), k.openLookupProgram(&o)
	k.readErr = k.openDumper(&o)
	k.accessMethods.Reason = errors.Join(k.writeErr, k.lookupErr, k.readErr)
	k.batch = k.newBatch(&o)
	k.log(o.Logger)
	return k, nil
}

// Reasons why a program does not write a map.
var (
	errNoProgram         = errors.New("programs are switched off")
	errPerCPU            = errors.New("a program writes the value of its own CPU only")
	errTooManyKeepRanges = fmt.Errorf("a program keeps at most %d parts of a value", keepRanges)
)

// fallback returns the access method without a program.
func fallback() AccessMethod {
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
		err = errTooManyKeepRanges
	default:
		k.writer, err = k.openSoftirqSafeWriter(o)
		if err != nil {
			k.writer, err = k.openSharedProgram(o.OwnWriteMarks, k.burst(o), bpf.AccessProgMapsyncWrite,
				bpf.AccessMapWriteEntries, bpf.AccessMapWriteCursor, bpf.AccessMapOwnWriteMarks)
		}
	}
	if err != nil {
		k.accessMethods.Write = fallback()
		k.syscallWriter = newSyscallWriter(k)
		return fmt.Errorf("write by %s: %w", k.accessMethods.Write, err)
	}
	return nil
}

func (k *Map) openLookupProgram(o *Options) error {
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
		k.accessMethods.Lookup = BySingle
		return fmt.Errorf("look up by %s: %w", BySingle, err)
	}
	return nil
}

func (k *Map) openLookup(o *Options, program string) (err error) {
	k.lookupProgram, err = k.openSharedProgram(nil, min(lookupSlots, k.burst(o)), program,
		bpf.AccessMapLookupEntries, bpf.AccessMapLookupCursor)
	return err
}

// openLocked loads the lookup under the value's lock. Without CAP_SYS_ADMIN it cannot read the
// map's BTF, which contains the offset of the lock. The verifier reads that BTF and refuses every
// wrong offset, so openLocked tries all offsets.
func (k *Map) openLocked(o *Options) error {
	if k.info.LockOffset >= 0 {
		return k.openLookup(o, bpf.AccessProgMapsyncLookupLocked)
	}
	var err error
	for at := 0; at+4 <= k.info.ValueSize; at += 4 {
		k.info.LockOffset = at
		if err = k.openLookup(o, bpf.AccessProgMapsyncLookupLocked); err == nil {
			return nil
		}
		if verifierErr := new(ebpf.VerifierError); !errors.As(err, &verifierErr) {
			break // the error has another cause than the offset
		}
	}
	k.info.LockOffset = -1
	return fmt.Errorf("find the spin lock in the value: %w", err)
}

// openDumper loads the iterator. It reads only keys if an iterator cannot return the values: see
// keysOnly.
func (k *Map) openDumper(o *Options) error {
	err := errNoProgram
	switch {
	case o.NoProgram:
	case k.keysOnly() && k.lookupProgram == nil:
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
		k.accessMethods.Read = fallback()
		return fmt.Errorf("read by %s: %w", k.accessMethods.Read, err)
	}
	return nil
}

// openSharedProgram loads a program that works on an array of entries. It runs the program once
// without entries, to detect errors that only a run shows.
func (k *Map) openSharedProgram(own *ebpf.Map, slots int, program, entries, cursor string, more ...string) (*sharedProgram, error) {
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
	s, err := newSharedProgram(obj, k.layout, entries, cursor)
	if err != nil {
		obj.close()
		return nil, err
	}
	s.steps = max(1, k.info.CPUs)
	if program == bpf.AccessProgMapsyncWriteSoftirqSafe {
		s.softirqSafe, err = openSoftirqSafeRunner(s)
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
		"read", k.accessMethods.Read, "lookup", k.accessMethods.Lookup, "write", k.accessMethods.Write, "burst", k.batch.Cap(),
		"softirq_safe", k.softirqSafe(),
	}
	if k.accessMethods.Reason != nil {
		l.Warn("opened map with fallback access", append(attrs, "reason", k.accessMethods.Reason)...)
		return
	}
	l.Info("opened map", attrs...)
}

// Info returns the description of the map at the time of Open.
func (k *Map) Info() Info { return k.info }

// AccessMethods returns the access methods of the map.
func (k *Map) AccessMethods() AccessMethods { return k.accessMethods }

// Close releases all resources of Open. The user of the [Batch] must have stopped.
func (k *Map) Close() error {
	k.writeMu.Lock()
	defer k.writeMu.Unlock()
	// The locks are taken in this order, because reads and writes may call Lookup.
	k.readMu.Lock()
	defer k.readMu.Unlock()
	k.lookupMu.Lock()
	defer k.lookupMu.Unlock()
	err := errors.Join(k.writer.close(), k.lookupProgram.close(), k.m.Close())
	k.dumper.close()
	k.writer, k.lookupProgram, k.dumper, k.batch.mem = nil, nil, nil, nil
	return err
}
