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
	ByBuckets  AccessMethod = "buckets"  // BPF program that reads the buckets, a bounded number per run
	ByIterator AccessMethod = "iterator" // BPF iterator over the map's elements
	ByProgram  AccessMethod = "program"  // BPF program over entries in shared memory
	ByBatch    AccessMethod = "batch"    // bpf(2), many entries per call
	BySingle   AccessMethod = "single"   // bpf(2), one entry per call
)

// AccessMethods are the access methods of a map, as selected by [Open].
type AccessMethods struct {
	// Read is ByBuckets, ByIterator or ByBatch for the whole map. An array is read like Lookup.
	Read   AccessMethod
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
func (k *Map) fallback() AccessMethod {
	// Arrays of per-CPU values have batches from 5.13 on, but are small and rarely written.
	if k.info.Type != ebpf.PerCPUArray && haveBatch() == nil {
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
			k.writer, err = k.openWriteProgram(o, bpf.AccessProgMapsyncWrite)
		}
	}
	if err != nil {
		k.accessMethods.Write = k.fallback()
		k.syscallWriter = newSyscallWriter(k)
		return fmt.Errorf("write by %s: %w", k.accessMethods.Write, err)
	}
	return nil
}

func (k *Map) openWriteProgram(o *Options, program string) (*sharedProgram, error) {
	return k.openSharedProgram(o.OwnWriteMarks, objectSpec{
		program: program, maps: []string{bpf.AccessMapOwnWriteMarks}, slots: k.burst(o), keep: k.keep,
	})
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
	k.lookupProgram, err = k.openSharedProgram(nil, objectSpec{program: program, slots: min(lookupSlots, k.burst(o))})
	return err
}

// maxLockedByProgram is the size of the largest value that a program copies under its lock: the verifier follows each
// step of that loop.
const maxLockedByProgram = 4096

// openLocked loads the lookup under the value's lock. Without CAP_SYS_ADMIN it cannot read the
// map's BTF, which contains the offset of the lock. The verifier reads that BTF and refuses every
// wrong offset, so openLocked tries all offsets.
func (k *Map) openLocked(o *Options) error {
	if k.info.ValueSize > maxLockedByProgram {
		return fmt.Errorf("values with a spin lock have more than %d bytes", maxLockedByProgram)
	}
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

// openReadMethod opens the best method to read the whole map. It returns an error if that is not ByBuckets.
func (k *Map) openReadMethod(o *Options) error {
	if IsArray(k.info.Type) {
		k.accessMethods.Read = k.accessMethods.Lookup
		return nil // openLookupProgram has returned the error
	}
	if o.NoProgram {
		k.accessMethods.Read = ByBatch
		return fmt.Errorf("read by %s: %w", ByBatch, errNoProgram)
	}
	err := k.openBucketReader(k.burst(o), k.readsKeys())
	if err == nil && !k.zeroSeed() {
		return nil
	}
	dumperErr := k.openDumper()
	if err == nil {
		return nil // read uses the iterator, or batches, if a bucket has too many entries
	}
	k.accessMethods.Read = ByIterator
	if dumperErr != nil {
		err, k.accessMethods.Read = errors.Join(err, dumperErr), ByBatch
	}
	return fmt.Errorf("read by %s: %w", k.accessMethods.Read, err)
}

// openSharedProgram loads a program that works on an array of entries. It runs the program once
// without entries, to detect errors that only a run shows. own may be nil.
func (k *Map) openSharedProgram(own *ebpf.Map, want objectSpec) (*sharedProgram, error) {
	want.maps = append(want.maps, bpf.AccessMapTarget, bpf.AccessMapEntries, bpf.AccessMapCursor)
	obj, err := loadObject(k.m, &k.info, own, want)
	if err != nil {
		return nil, err
	}
	s, err := newSharedProgram(obj, k.layout, want.slots)
	if err != nil {
		obj.close()
		return nil, err
	}
	s.steps = max(1, k.info.CPUs)
	if want.program == bpf.AccessProgMapsyncWriteSoftirqSafe {
		s.softirqSafe, err = openSoftirqSafeRunner(s)
	} else {
		err = testRun(s.prog.FD(), 1)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("run program: %w", err), s.close())
	}
	return s, nil
}

// ReadsTimers returns true if the values that are read have the bytes of a bpf_timer or bpf_wq as they are in the kernel.
// bpf(2) returns zeros instead, and no program can copy a value with a timer under its bpf_spin_lock.
func (k *Map) ReadsTimers() bool {
	return k.accessMethods.Read != ByBatch && k.accessMethods.Lookup == ByProgram
}

// AccessMethods returns the access methods of the map.
func (k *Map) AccessMethods() AccessMethods { return k.accessMethods }
