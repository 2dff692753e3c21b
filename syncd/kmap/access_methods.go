package kmap

import (
	"errors"
	"fmt"

	"mapsync/bpf"

	"github.com/cilium/ebpf"
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

// AccessMethods returns the access methods of the map.
func (k *Map) AccessMethods() AccessMethods { return k.accessMethods }
