package kmap

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// Sizes that a replicated map may have, in bytes: what an event can carry. Of a
// per-CPU map it carries the key alone, and what bounds the values of all CPUs
// together is the memory of a record.
const (
	MaxKeySize         = 512
	MaxValueSize       = 4096
	MaxPerCPUValueSize = 64 << 10
)

// ErrUnsupported is returned, wrapped, for a map that cannot be replicated.
var ErrUnsupported = errors.New("map cannot be replicated")

// Info describes a map. It is a copy: nothing in it changes with the map.
type Info struct {
	ID      uint32
	Name    string // at most 15 bytes
	Type    ebpf.MapType
	KeySize int // bytes
	// ValueSize is the size of an entry's whole value in bytes. In a per-CPU map
	// that is each CPU's, padded to 8 bytes, one after the other.
	ValueSize int
	// ElemSize is the value size that the map was made with, in bytes: the value
	// of one CPU in a per-CPU map, else the same as ValueSize.
	ElemSize int
	// CPUs is the number of possible CPUs for a per-CPU map, else 0.
	CPUs       int
	MaxEntries int
	Flags      uint32 // BPF_F_ flags of the map's creation
	// Entries is the number of entries when asked, -1 where it is not known.
	Entries int
	// Pins are the paths where the map is pinned; filled by [List] only.
	Pins []string
	// Supported is nil for a map that can be replicated, else why it cannot.
	Supported error
	// BTFID, BTFKeyType and BTFValueType name the map's types in the kernel's
	// BTF; all 0 for a map without.
	BTFID, BTFKeyType, BTFValueType uint32
	// HasSpinLock says that the value holds a struct bpf_spin_lock, so that it
	// is read and written under that lock (BPF_F_LOCK).
	HasSpinLock bool
	// LockOffset is where in the value the lock is, in bytes; -1 when there is
	// none, or when the map's BTF may not be read and no program found it.
	LockOffset int
}

// Describe returns what the kernel knows about m. Entries and Pins are not looked for.
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
	info.Supported = info.measure()
	if info.Supported == nil && info.CPUs == 0 { // no lock in a value per CPU: map_check_btf
		info.HasSpinLock = hasSpinLock(m, &info)
	}
	if info.HasSpinLock {
		info.LockOffset = lockOffset(btf.ID(info.BTFID), btf.TypeID(info.BTFValueType))
	}
	return info, nil
}

// measure finds the size of a per-CPU map's values, and says why a map cannot be
// replicated.
func (i *Info) measure() (err error) {
	if perCPU(i.Type) {
		if i.CPUs, err = ebpf.PossibleCPU(); err != nil {
			return fmt.Errorf("%w: count possible CPUs: %w", ErrUnsupported, err)
		}
		i.ValueSize = i.CPUs * pad8(i.ElemSize)
	}
	return i.supported()
}

// replicable are the types of map that can be replicated.
var replicable = []ebpf.MapType{ebpf.Hash, ebpf.LRUHash, ebpf.PerCPUHash, ebpf.LRUCPUHash}

func perCPU(t ebpf.MapType) bool { return t == ebpf.PerCPUHash || t == ebpf.LRUCPUHash }

func (i *Info) supported() error {
	switch {
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

// hasSpinLock asks the kernel itself: a lookup with BPF_F_LOCK is EINVAL on a
// map without a lock (bpf_map_copy_value's caller checks before the key).
func hasSpinLock(m *ebpf.Map, i *Info) bool {
	if i.BTFID == 0 {
		return false // no lock without BTF: map_check_btf
	}
	key, value := make([]byte, i.KeySize), make([]byte, i.ValueSize)
	err := m.LookupWithFlags(key, value, ebpf.LookupLock)
	return err == nil || errors.Is(err, ebpf.ErrKeyNotExist) || errors.Is(err, unix.ENOENT)
}

// lockOffset finds the lock in the value's type, -1 if it cannot. Reading a
// map's BTF by id needs CAP_SYS_ADMIN.
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
