// Package feed replaces a load balancer's data plane on kernels without hooks. A BPF program of type
// syscall writes a map and reports each change. It uses the same code and the same buffer as the
// hooks. Tests and benchmarks use this package.
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

// Options configures an Injector.
type Options struct {
	Capacity  int  // maximum number of stored changes
	SkipWrite bool // report changes without writing the map
	SkipEvent bool // write the map without reporting changes
}

// Injector writes one map. It is not safe for concurrent use.
type Injector struct {
	objects   *ebpf.Collection
	program   *ebpf.Program
	memory    []byte
	keySize   int
	valueSize int
	stride    int
	capacity  int
	used      int
}

// changeHead is the number of bytes before the key in struct change of bpf/feed.bpf.c.
const changeHead = 8

// Open loads an injector for target. It reports changes through shared, the maps of a capture
// (capture.Capture.Maps). The caller keeps ownership of both.
func Open(target *ebpf.Map, shared map[string]*ebpf.Map, o Options) (*Injector, error) {
	spec, err := bpf.LoadInjector()
	if err != nil {
		return nil, fmt.Errorf("read BPF object: %w", err)
	}
	info, err := target.Info()
	if err != nil {
		return nil, fmt.Errorf("read the map's id: %w", err)
	}
	id, ok := info.ID()
	if !ok {
		return nil, fmt.Errorf("read the map's id: the kernel does not return it")
	}
	f := &Injector{keySize: int(target.KeySize()), valueSize: int(target.ValueSize()), capacity: o.Capacity}
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
		return nil, fmt.Errorf("load injector: %w", err)
	}
	f.program = f.objects.Programs["inject"]
	size := (o.Capacity*f.stride + os.Getpagesize() - 1) &^ (os.Getpagesize() - 1)
	f.memory, err = unix.Mmap(f.objects.Maps["changes"].FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		f.objects.Close()
		return nil, fmt.Errorf("map the changes into memory: %w", err)
	}
	return f, nil
}

// Add appends a change to those that Run makes. It returns false if the injector is full. It ignores
// the value of a delete.
func (f *Injector) Add(op table.Op, context table.Context, key, value []byte) bool {
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

// Reset removes all added changes.
func (f *Injector) Reset() { f.used = 0 }

// Run makes all added changes in one run of the program. It returns the number of changes that the map
// refused.
func (f *Injector) Run() (failed int, err error) { return f.RunPart(0, f.used) }

// runArgs is struct feed_args of bpf/feed.bpf.c.
type runArgs struct {
	_                    structs.HostLayout
	First, Count, Failed uint32
}

// RunPart makes count of the added changes, starting with index first.
func (f *Injector) RunPart(first, count int) (failed int, err error) {
	args := runArgs{First: uint32(first), Count: uint32(count)}
	out := (*[unsafe.Sizeof(args)]byte)(unsafe.Pointer(&args))[:]
	_, err = f.program.Run(&ebpf.RunOptions{Context: &args, ContextOut: out})
	if err != nil {
		return 0, fmt.Errorf("run injector: %w", err)
	}
	return int(args.Failed), nil
}

// Close frees the injector.
func (f *Injector) Close() error {
	err := unix.Munmap(f.memory)
	f.objects.Close()
	return err
}

func align8(n int) int { return (n + 7) &^ 7 }
