package drained

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"

	"github.com/cilium/ebpf"

	"mapsync/bpf"
)

// Limits of a drained map in bytes. The programs copy an entry to memory of limited size, and the key of a sum is that of a
// replicated map.
const (
	MaxKeySize   = 512 - OriginSize
	MaxValueSize = 4096
	// OriginSize is the size of the origin at the end of the key of a sum, in bytes.
	OriginSize = 8
	// MaxRanges is MAX_RANGES in bpf/drain_sums.h.
	MaxRanges = 64
)

// ErrUnsupported is wrapped by the errors of maps whose entries cannot be added.
var ErrUnsupported = errors.New("map cannot be drained")

// Range is a range of bytes of a value.
type Range struct{ Offset, Size int }

// Method is the way in which the programs are attached.
type Method string

// The methods.
const (
	ByFexit   Method = "fexit"   // on the kernel's functions for lookup-and-delete
	ByKprobe  Method = "kprobe"  // on the system call bpf(2)
	BySyscall Method = "syscall" // on all system calls
)

// Options are the options of [Open].
type Options struct {
	// Folder is the folder of the pins, below a mounted BPF filesystem. Only this map may use it. Empty: nothing is
	// pinned, and a restart of syncd begins new sums.
	Folder string
	// Type, KeySize and ValueSize describe the drained map. The sizes are in bytes.
	Type               ebpf.MapType
	KeySize, ValueSize int
	// Added are the fields of a value that are added, of 4 or 8 bytes each, in ascending order. Of the other bytes,
	// the sums have those of the entry that was drained last.
	Added []Range
	// MaxEntries is the maximum number of sums, of all nodes.
	MaxEntries int
	// Methods are tried in their order.
	Methods []Method
	// Entries are the kernel's functions for the system call bpf(2), the one for 64-bit programs first. ByKprobe needs
	// them.
	Entries []string
	// EachKey calls a function for every key of a hash map, until the function returns an error. The function may delete
	// the key. It must not be nil.
	EachKey func(m *ebpf.Map, fn func(key []byte) error) error
	// MeasureCreate runs the call that creates a map of sums. Nil: without a measurement.
	MeasureCreate func(create func())
	// Logger receives messages. It must not be nil.
	Logger *slog.Logger
}

func (o *Options) validate() error {
	if o.MeasureCreate == nil {
		o.MeasureCreate = func(create func()) { create() }
	}
	switch {
	case o.Type != ebpf.Hash && o.Type != ebpf.LRUHash:
		return fmt.Errorf("%w: its type is %s, and only Hash and LRUHash are possible", ErrUnsupported, o.Type)
	case o.KeySize > MaxKeySize:
		return fmt.Errorf("%w: its key has %d bytes, more than %d", ErrUnsupported, o.KeySize, MaxKeySize)
	case o.ValueSize > MaxValueSize:
		return fmt.Errorf("%w: its value has %d bytes, more than %d", ErrUnsupported, o.ValueSize, MaxValueSize)
	case len(o.Added) == 0:
		return fmt.Errorf("%w: no field of its values has the role sum, so give the counters that role with the setting field", ErrUnsupported)
	}
	for _, r := range o.Added {
		if r.Size != 4 && r.Size != 8 || r.Offset%r.Size != 0 || r.Offset+r.Size > o.ValueSize {
			return fmt.Errorf("%w: a field with the role sum is at byte %d and has %d bytes, and only aligned fields of 4 or 8 bytes are possible",
				ErrUnsupported, r.Offset, r.Size)
		}
	}
	if len(o.Added) >= MaxRanges {
		return fmt.Errorf("%w: %d fields have the role sum, and %d are possible", ErrUnsupported, len(o.Added), MaxRanges-1)
	}
	return nil
}

// copied returns the ranges of a value that are not added.
func (o *Options) copied() (list []Range) {
	at := 0
	for _, r := range append(o.Added[:len(o.Added):len(o.Added)], Range{Offset: o.ValueSize}) {
		if r.Offset > at {
			list = append(list, Range{at, r.Offset - at})
		}
		at = r.Offset + r.Size
	}
	return list
}

// layout identifies the layout of the sums.
func (o *Options) layout() uint64 {
	h := fnv.New64a()
	_ = binary.Write(h, binary.NativeEndian, []int64{int64(o.KeySize), int64(o.ValueSize)})
	for _, r := range o.Added {
		_ = binary.Write(h, binary.NativeEndian, []int64{int64(r.Offset), int64(r.Size)})
	}
	return h.Sum64()
}

// constants sets the constants of the programs of a generation of a method. Trampolines and kprobes run the program that
// was attached last first (bpf_trampoline_link_prog, add_new_kprobe). Return probes and tracepoints run it last.
func (o *Options) constants(spec *ebpf.CollectionSpec, m Method, generation uint64) error {
	var added, copied [MaxRanges]bpf.DrainRange
	for i, r := range o.Added {
		added[i] = bpf.DrainRange{Offset: uint32(r.Offset), Size: uint32(r.Size)}
	}
	for i, r := range o.copied() {
		copied[i] = bpf.DrainRange{Offset: uint32(r.Offset), Size: uint32(r.Size)}
	}
	for name, value := range map[string]any{
		"key_size": uint32(o.KeySize), "value_size": uint32(o.ValueSize), "added": added, "copied": copied, "generation": generation,
		"newest_begins_first": m != BySyscall, "newest_ends_first": m == ByFexit,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set BPF constant %s: %w", name, err)
		}
	}
	return nil
}
