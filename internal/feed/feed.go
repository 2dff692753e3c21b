// Package feed stands in for a load balancer's data plane where the kernel allows
// no hooks: a BPF program of type syscall writes a map and reports each change by
// the same code, into the same buffer, as the hooks do. Tests and benchmarks use it.
package feed

import (
	"encoding/binary"
	"fmt"
	"os"
	"structs"
	"unsafe"

	"mapsync/bpf"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Options configures a Feed.
type Options struct {
	Capacity  int  // changes that it holds at once
	SkipWrite bool // report without writing the map
	SkipEvent bool // write the map without reporting
}

// Feed writes one map. It is not safe for concurrent use.
type Feed struct {
	objects   *ebpf.Collection
	program   *ebpf.Program
	memory    []byte
	keySize   int
	valueSize int
	stride    int
	capacity  int
	used      int
}

// Bytes before the key in struct change of bpf/feed.bpf.c.
const changeHead = 8

// Open loads a feed for target that reports through shared, the maps of a
// capture (capture.Capture.Maps). Both stay the caller's.
func Open(target *ebpf.Map, shared map[string]*ebpf.Map, o Options) (*Feed, error) {
	spec, err := bpf.LoadFeed()
	if err != nil {
		return nil, fmt.Errorf("read BPF object: %w", err)
	}
	info, err := target.Info()
	if err != nil {
		return nil, fmt.Errorf("ask for the map's id: %w", err)
	}
	id, ok := info.ID()
	if !ok {
		return nil, fmt.Errorf("ask for the map's id: the kernel did not say")
	}
	f := &Feed{keySize: int(target.KeySize()), valueSize: int(target.ValueSize()), capacity: o.Capacity}
	f.stride = changeHead + align8(f.keySize) + align8(f.valueSize)
	spec.Maps["changes"].MaxEntries = uint32(o.Capacity)
	spec.Maps["changes"].ValueSize = uint32(f.stride)
	spec.Maps["changes"].Value = nil
	for name, value := range map[string]any{
		"target_id": uint32(id), "key_size": uint32(f.keySize), "value_size": uint32(f.valueSize),
		"skip_write": o.SkipWrite, "skip_event": o.SkipEvent,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set BPF constant %s: %w", name, err)
		}
	}
	replace := map[string]*ebpf.Map{"target": target}
	spec.Maps["target"].Type, spec.Maps["target"].Flags = target.Type(), target.Flags()
	spec.Maps["target"].KeySize, spec.Maps["target"].ValueSize = target.KeySize(), target.ValueSize()
	spec.Maps["target"].MaxEntries = target.MaxEntries()
	for name, m := range shared {
		if spec.Maps[name] != nil {
			spec.Maps[name].MaxEntries = m.MaxEntries()
			replace[name] = m
		}
	}
	if f.objects, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replace}); err != nil {
		return nil, fmt.Errorf("load feed: %w", err)
	}
	f.program = f.objects.Programs["feed"]
	size := (o.Capacity*f.stride + os.Getpagesize() - 1) &^ (os.Getpagesize() - 1)
	f.memory, err = unix.Mmap(f.objects.Maps["changes"].FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		f.objects.Close()
		return nil, fmt.Errorf("map the changes into memory: %w", err)
	}
	return f, nil
}

// Add puts a change at the end of those that Run makes. It reports false when
// the feed is full. The value of a delete is ignored.
func (f *Feed) Add(op table.Op, context table.Context, key, value []byte) bool {
	if f.used == f.capacity {
		return false
	}
	at := f.memory[f.used*f.stride:]
	binary.NativeEndian.PutUint32(at, uint32(op))
	binary.NativeEndian.PutUint32(at[4:], uint32(context))
	copy(at[changeHead:], key[:f.keySize])
	if op == table.OpUpdate {
		copy(at[changeHead+align8(f.keySize):], value[:f.valueSize])
	}
	f.used++
	return true
}

// Reset forgets the changes that were added.
func (f *Feed) Reset() { f.used = 0 }

// Run makes all changes that were added, in one run of the program, and returns
// how many the map refused.
func (f *Feed) Run() (failed int, err error) { return f.RunPart(0, f.used) }

// runArgs is struct feed_args of bpf/feed.bpf.c.
type runArgs struct {
	_                    structs.HostLayout
	First, Count, Failed uint32
}

// RunPart makes count of the changes that were added, from first on.
func (f *Feed) RunPart(first, count int) (failed int, err error) {
	args := runArgs{First: uint32(first), Count: uint32(count)}
	out := (*[unsafe.Sizeof(args)]byte)(unsafe.Pointer(&args))[:]
	_, err = f.program.Run(&ebpf.RunOptions{Context: &args, ContextOut: out})
	if err != nil {
		return 0, fmt.Errorf("run feed: %w", err)
	}
	return int(args.Failed), nil
}

// Close frees the feed.
func (f *Feed) Close() error {
	err := unix.Munmap(f.memory)
	f.objects.Close()
	return err
}

func align8(n int) int { return (n + 7) &^ 7 }
