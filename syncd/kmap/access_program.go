package kmap

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/bpf"
	"mapsync/syncd/table"
)

// Layout of an entry in the shared arrays: struct entry in bpf/access.bpf.c.
const (
	entryOp  = 0
	entryRC  = 4
	entryKey = 8
)

const (
	opNone = iota
	opUpdate
	opDelete
)

// RUN_ENTRIES and KEEP_RANGES in bpf/access.bpf.c.
const (
	runEntries = 16
	keepRanges = 512
)

// stallTimeout is the duration without progress after which a burst fails. It is much longer than
// another syncd thread can need to finish its run on one CPU.
const stallTimeout = 10 * time.Second

// layout describes the entries of one map in a shared array. All sizes and offsets are in bytes.
type layout struct {
	keySize, valueSize  int
	valueOffset, stride int
}

func newLayout(i *Info) layout {
	l := layout{keySize: i.KeySize, valueSize: i.ValueSize}
	l.valueOffset = entryKey + pad8(i.KeySize)
	l.stride = l.valueOffset + pad8(i.ValueSize)
	return l
}

func pad8(n int) int { return (n + 7) &^ 7 }

// object is the part of bpf/access.bpf.c that is loaded into the kernel for one purpose on one map.
// Programs are loaded separately, so that a program that a map forbids does not prevent the others
// from loading.
type object struct {
	coll *ebpf.Collection
	prog *ebpf.Program
}

// objectSpec selects the program to load, and its sizes.
type objectSpec struct {
	program  string
	maps     []string // maps that the program uses
	slots    int      // elements of the array of entries
	keysOnly bool
	keep     []table.Range // at most keepRanges
}

// embedded returns bpf/access.bpf.c. Callers change a copy.
var embedded = sync.OnceValues(bpf.LoadAccess)

// loadObject loads one program for the map. own may be nil. The caller closes the object.
func loadObject(m *ebpf.Map, info *Info, own *ebpf.Map, want objectSpec) (*object, error) {
	spec, err := embedded()
	if err != nil {
		return nil, fmt.Errorf("read embedded program: %w", err)
	}
	spec = spec.Copy()
	bpf.NameMaps(spec)
	keep := map[string]bool{".rodata": true}
	for _, name := range want.maps {
		keep[name] = true
	}
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return name != want.program })
	maps.DeleteFunc(spec.Maps, func(name string, _ *ebpf.MapSpec) bool { return !keep[name] })
	if err := setConstants(spec, info, &want); err != nil {
		return nil, err
	}
	replace := map[string]*ebpf.Map{}
	if target := spec.Maps[bpf.AccessMapTarget]; target != nil {
		target.Type, target.Flags = m.Type(), m.Flags()
		target.KeySize, target.ValueSize, target.MaxEntries = m.KeySize(), m.ValueSize(), m.MaxEntries()
		replace[bpf.AccessMapTarget] = m
	}
	if own != nil && keep[bpf.AccessMapOwnWriteMarks] {
		replace[bpf.AccessMapOwnWriteMarks] = own
	}
	l := newLayout(info)
	if s := spec.Maps[bpf.AccessMapEntries]; s != nil {
		s.ValueSize, s.MaxEntries = uint32(l.stride), uint32(want.slots)
	}
	if s := spec.Maps[bpf.AccessMapScratch]; s != nil {
		s.ValueSize = uint32(info.KeySize + info.ValueSize)
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replace, Cache: bpf.KernelTypes()})
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", want.program, err)
	}
	return &object{coll: coll, prog: coll.Programs[want.program]}, nil
}

func setConstants(spec *ebpf.CollectionSpec, info *Info, want *objectSpec) error {
	l := newLayout(info)
	flags := uint64(ebpf.UpdateAny)
	if info.HasSpinLock {
		flags |= uint64(ebpf.UpdateLock)
	}
	var keep [keepRanges]bpf.AccessRange
	for i, r := range want.keep {
		keep[i] = bpf.AccessRange{Offset: uint32(r.Offset), Size: uint32(r.Size)}
	}
	constants := map[string]any{
		bpf.AccessVarKeySize:     uint32(info.KeySize),
		bpf.AccessVarValueSize:   uint32(info.ValueSize),
		bpf.AccessVarValueOffset: uint32(l.valueOffset),
		bpf.AccessVarLockOffset:  uint32(max(info.LockOffset, 0)),
		bpf.AccessVarUpdateFlags: flags,
		bpf.AccessVarKeysOnly:    want.keysOnly,
		bpf.AccessVarIsArray:     IsArray(info.Type),
		bpf.AccessVarCpus:        uint32(max(info.CPUs, 1)),
		bpf.AccessVarElemSize:    uint32(info.ElemSize),
		bpf.AccessVarKeep:        keep,
		bpf.AccessVarKeepCount:   uint32(len(want.keep)),
	}
	for name, value := range constants {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set constant %s: %w", name, err)
		}
	}
	return nil
}

// closeMaps closes the descriptors of the maps. The program holds the maps.
func (o *object) closeMaps() error {
	var errs []error
	for name, m := range o.coll.Maps {
		errs = append(errs, m.Close())
		delete(o.coll.Maps, name)
	}
	return errors.Join(errs...)
}

func (o *object) close() {
	if o != nil {
		o.coll.Close()
	}
}

// sharedProgram is a program with its array of entries and its cursor, both mapped into this
// process's memory. It runs one burst at a time.
type sharedProgram struct {
	object
	layout
	entries     []byte
	cursor      []byte
	slots       int
	steps       int                // steps of the program per entry
	softirqSafe *softirqSafeRunner // nil: test runs
}

func newSharedProgram(o *object, l layout, slots int) (*sharedProgram, error) {
	s := &sharedProgram{object: *o, layout: l, slots: slots}
	var err error
	if s.entries, err = mapMemory(o.coll.Maps[bpf.AccessMapEntries], s.slots*l.stride); err != nil {
		return nil, err
	}
	if s.cursor, err = mapMemory(o.coll.Maps[bpf.AccessMapCursor], int(unsafe.Sizeof(bpf.AccessCursor{}))); err != nil {
		return nil, errors.Join(err, unix.Munmap(s.entries))
	}
	return s, o.closeMaps()
}

// mapMemory maps at least size bytes of a BPF_F_MMAPABLE array into memory.
func mapMemory(m *ebpf.Map, size int) ([]byte, error) {
	page := unix.Getpagesize()
	mem, err := unix.Mmap(m.FD(), 0, (size+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map array into memory: %w", err)
	}
	return mem, nil
}

func (s *sharedProgram) close() error {
	if s == nil {
		return nil
	}
	err := errors.Join(s.softirqSafe.close(), unix.Munmap(s.entries), unix.Munmap(s.cursor))
	s.entries, s.cursor = nil, nil
	s.object.close()
	return err
}

// runs makes the kernel run the program n times or fewer.
func (s *sharedProgram) runs(n uint32) error {
	if s.softirqSafe != nil {
		return s.softirqSafe.runs(n)
	}
	return testRun(s.prog.FD(), n)
}

// run processes the entries from first to end, without end, with the program, and returns the number of
// failed entries. It continues a run that a signal ended early.
func (s *sharedProgram) run(first, end int) (failed int, err error) {
	at, last := uint32(first*s.steps), uint32(end*s.steps)
	c := (*bpf.AccessCursor)(unsafe.Pointer(&s.cursor[0]))
	atomic.StoreUint32(&c.Failed, 0)
	atomic.StoreUint32(&c.Next, at)
	atomic.StoreUint32(&c.End, last)
	var idle time.Time
	for at < last {
		err := s.runs((last - at + runEntries - 1) / runEntries)
		if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return 0, fmt.Errorf("run program: %w", err)
		}
		next := atomic.LoadUint32(&c.Next)
		if next != at {
			at, idle = next, time.Time{}
			continue
		}
		// Another syncd thread is inside its own run on this CPU.
		if idle.IsZero() {
			idle = time.Now()
		} else if time.Since(idle) > stallTimeout {
			return 0, fmt.Errorf("run program: no progress in %s", stallTimeout)
		}
		time.Sleep(50 * time.Microsecond)
	}
	return int(atomic.LoadUint32(&c.Failed)), nil
}
