package kmap

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// Maximum sizes of a replicated map in bytes. MaxKeySize is the limit of an event. MaxValueSize leaves room for
// the key in the largest entry that replicates. MaxPerCPUValueSize limits the values of all CPUs together, to
// bound the memory of a record.
const (
	MaxKeySize         = 512
	MaxValueSize       = 32<<10 - MaxKeySize
	MaxPerCPUValueSize = 64 << 10
)

// ErrUnsupported is returned, wrapped, for a map that cannot be replicated.
var ErrUnsupported = errors.New("map cannot be replicated")

// Info describes a map. It is a copy and does not change with the map.
type Info struct {
	ID      uint32
	Name    string // at most 15 bytes
	Type    ebpf.MapType
	KeySize int // bytes
	// ValueSize is the size of an entry's whole value in bytes. In a per-CPU map it includes the
	// values of all CPUs, each padded to 8 bytes.
	ValueSize int
	// ElemSize is the value size with which the map was created, in bytes. In a per-CPU map it is
	// the size of one CPU's value, otherwise it equals ValueSize.
	ElemSize int
	// CPUs is the number of possible CPUs for a per-CPU map, otherwise 0.
	CPUs       int
	MaxEntries int
	Flags      uint32 // BPF_F_ flags of the map's creation
	// Entries is the number of entries at the time of the call, of an array that of its elements, or -1 if
	// unavailable.
	Entries int
	// Pins are the paths at which the map is pinned. Only [List] sets them.
	Pins []string
	// Unsupported is nil for a map that can be replicated, otherwise the reason.
	Unsupported error
	// BTFID, BTFKeyType and BTFValueType identify the map's types in the kernel's BTF. All are 0
	// for a map without BTF.
	BTFID, BTFKeyType, BTFValueType uint32
	// HasSpinLock is true if the value contains a struct bpf_spin_lock. The value is then read and
	// written under that lock (BPF_F_LOCK).
	HasSpinLock bool
	// LockOffset is the offset of the lock in the value, in bytes. It is -1 if the value has no
	// lock, or if the map's BTF is not readable and no program found the lock.
	LockOffset int
}

// Mappable reports whether processes may write the map through mmap(2). Of the types that can be replicated, only an
// ARRAY can be such a map. No hook detects these writes.
func (i *Info) Mappable() bool { return i.Flags&unix.BPF_F_MMAPABLE != 0 }

// Describe returns the kernel's description of m. It leaves Entries at -1 and Pins empty.
func Describe(m *ebpf.Map) (Info, error) {
	raw, err := infoOf(m.FD())
	if err != nil {
		return Info{}, err
	}
	info := Info{
		ID:           raw.id,
		Name:         raw.nameString(),
		Type:         ebpf.MapType(raw.typ),
		KeySize:      int(raw.keySize),
		ValueSize:    int(raw.valueSize),
		ElemSize:     int(raw.valueSize),
		MaxEntries:   int(raw.maxEntries),
		Flags:        raw.flags,
		Entries:      -1,
		BTFID:        raw.btfID,
		BTFKeyType:   raw.btfKeyID,
		BTFValueType: raw.btfValueID,
		LockOffset:   -1,
	}
	info.Unsupported = info.resolveSizes()
	if info.Unsupported == nil && info.CPUs == 0 { // a per-CPU value has no lock: map_check_btf
		info.HasSpinLock = hasSpinLock(m, &info)
	}
	if info.HasSpinLock {
		info.LockOffset = lockOffset(btf.ID(info.BTFID), btf.TypeID(info.BTFValueType))
	}
	return info, nil
}

// resolveSizes sets the size of a per-CPU map's values. It returns an error that wraps
// ErrUnsupported if the map cannot be replicated.
func (i *Info) resolveSizes() (err error) {
	if perCPU(i.Type) {
		if i.CPUs, err = ebpf.PossibleCPU(); err != nil {
			return fmt.Errorf("%w: count possible CPUs: %w", ErrUnsupported, err)
		}
		i.ValueSize = i.CPUs * pad8(i.ElemSize)
	}
	return i.checkSupported()
}

// replicable are the map types that can be replicated.
var replicable = []ebpf.MapType{
	ebpf.Hash, ebpf.LRUHash, ebpf.PerCPUHash, ebpf.LRUCPUHash, ebpf.Array, ebpf.PerCPUArray,
}

func (i *Info) checkSupported() error {
	switch {
	case i.Type == ebpf.ArrayOfMaps || i.Type == ebpf.HashOfMaps:
		return fmt.Errorf("%w: its type is %s; write NAME=REF[KEY] to replicate an inner map", ErrUnsupported, i.Type)
	case !slices.Contains(replicable, i.Type):
		return fmt.Errorf("%w: its type is %s, not one of %v", ErrUnsupported, i.Type, replicable)
	case i.KeySize > MaxKeySize:
		return fmt.Errorf("%w: its key has %d bytes, more than %d", ErrUnsupported, i.KeySize, MaxKeySize)
	case i.CPUs > 0 && i.ValueSize > MaxPerCPUValueSize:
		return fmt.Errorf("%w: its value has %d bytes on each of %d CPUs, more than %d together",
			ErrUnsupported, pad8(i.ElemSize), i.CPUs, MaxPerCPUValueSize)
	case i.CPUs == 0 && i.ValueSize > MaxValueSize:
		return fmt.Errorf("%w: its value has %d bytes, more than %d", ErrUnsupported, i.ValueSize, MaxValueSize)
	}
	return nil
}

// hasSpinLock makes a lookup with BPF_F_LOCK, which the kernel refuses with EINVAL on a map without
// a lock. The caller of bpf_map_copy_value checks this before it looks up the key.
func hasSpinLock(m *ebpf.Map, i *Info) bool {
	if i.BTFID == 0 {
		return false // a lock requires BTF: map_check_btf
	}
	key, value := make([]byte, i.KeySize), make([]byte, i.ValueSize)
	err := m.LookupWithFlags(key, value, ebpf.LookupLock)
	return err == nil || errors.Is(err, ebpf.ErrKeyNotExist) || errors.Is(err, unix.ENOENT)
}

// lockOffset returns the offset of the lock in the value's type, or -1 on error. Reading a map's
// BTF by ID needs CAP_SYS_ADMIN.
func lockOffset(id btf.ID, value btf.TypeID) int {
	handle, err := btf.NewHandleFromID(id)
	if err != nil {
		return -1
	}
	defer release(handle)
	spec, err := handle.Spec(nil)
	if err != nil {
		return -1
	}
	typ, err := spec.TypeByID(value)
	if err != nil {
		return -1
	}
	return findLock(typ, 0)
}

func findLock(typ btf.Type, base int) int {
	typ = btf.UnderlyingType(typ)
	str, ok := typ.(*btf.Struct)
	if !ok {
		return -1
	}
	if str.Name == "bpf_spin_lock" {
		return base
	}
	for _, member := range str.Members {
		if at := findLock(member.Type, base+int(member.Offset.Bytes())); at >= 0 {
			return at
		}
	}
	return -1
}
