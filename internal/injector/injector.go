// Package injector replaces a load balancer's data plane on kernels without hooks. A BPF program of
// type syscall writes a map and reports each change. It uses the same code and the same buffer as the
// hooks. Only tests and benchmarks use this package.
package injector

import (
	"encoding/binary"
	"fmt"
	"os"
	"structs"
	"unsafe"

	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Options configures an Injector.
type Options struct {
	Capacity  int  // maximum number of stored changes
	SkipWrite bool // report changes without writing the map
	SkipEvent bool // write the map without reporting changes
	Perf      bool // report through a perf buffer; the program then processes packets
}

// Injector writes one map. Only RunPart is safe for concurrent use.
type Injector struct {
	objects   *ebpf.Collection
	program   *ebpf.Program
	memory    []byte
	keySize   int
	valueSize int
	stride    int
	capacity  int
	used      int
	packets   bool
}

// changeHead is the number of bytes before the key in struct change of injector.bpf.c.
const changeHead = 8

// Open loads an injector for target. It reports changes through shared, the maps of a capture
// (capture.Capture.Maps). Without shared, nothing receives them. The caller keeps ownership of both and
// closes the injector.
func Open(target *ebpf.Map, shared map[string]*ebpf.Map, o Options) (*Injector, error) {
	i := &Injector{keySize: int(target.KeySize()), valueSize: int(target.ValueSize()), capacity: o.Capacity, packets: o.Perf}
	i.stride = changeHead + align8(i.keySize) + align8(i.valueSize)
	spec, err := i.spec(target, o)
	if err != nil {
		return nil, err
	}
	replace := map[string]*ebpf.Map{"target": target}
	for name, m := range shared {
		if spec.Maps[name] != nil {
			spec.Maps[name].MaxEntries = m.MaxEntries()
			replace[name] = m
		}
	}
	if i.objects, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replace}); err != nil {
		return nil, fmt.Errorf("load injector: %w", err)
	}
	i.program = i.objects.Programs["inject"]
	size := (o.Capacity*i.stride + os.Getpagesize() - 1) &^ (os.Getpagesize() - 1)
	i.memory, err = unix.Mmap(i.objects.Maps["changes"].FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		i.objects.Close()
		return nil, fmt.Errorf("map the changes into memory: %w", err)
	}
	return i, nil
}

// spec returns the program and its maps, with the sizes of target.
func (i *Injector) spec(target *ebpf.Map, o Options) (*ebpf.CollectionSpec, error) {
	info, err := target.Info()
	if err != nil {
		return nil, fmt.Errorf("read the map's id: %w", err)
	}
	id, ok := info.ID()
	if !ok {
		return nil, fmt.Errorf("read the map's id: the kernel does not return it")
	}
	load := loadInjector
	constants := map[string]any{
		"target_id": uint32(id), "key_size": uint32(i.keySize), "value_size": uint32(i.valueSize),
		"skip_write": o.SkipWrite, "skip_event": o.SkipEvent,
	}
	if o.Perf {
		load, constants["use_perf"] = loadPackets, true
	}
	spec, err := load()
	if err != nil {
		return nil, fmt.Errorf("read BPF object: %w", err)
	}
	changes, replaced := spec.Maps["changes"], spec.Maps["target"]
	changes.MaxEntries, changes.ValueSize, changes.Value = uint32(o.Capacity), uint32(i.stride), nil
	replaced.Type, replaced.Flags, replaced.MaxEntries = target.Type(), target.Flags(), target.MaxEntries()
	replaced.KeySize, replaced.ValueSize = target.KeySize(), target.ValueSize()
	for name, value := range constants {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set BPF constant %s: %w", name, err)
		}
	}
	return spec, nil
}

// Add appends a change to those that Run makes. It returns false if the injector is full. It ignores
// the value of a delete.
func (i *Injector) Add(op table.Op, context table.Context, key, value []byte) bool {
	if i.used == i.capacity {
		return false
	}
	at := i.memory[i.used*i.stride:]
	binary.NativeEndian.PutUint16(at, uint16(op))
	binary.NativeEndian.PutUint16(at[2:], uint16(context))
	copy(at[changeHead:], key[:i.keySize])
	if op == table.OpUpdate {
		copy(at[changeHead+align8(i.keySize):], value[:i.valueSize])
	}
	i.used++
	return true
}

// Len returns the number of added changes.
func (i *Injector) Len() int { return i.used }

// Reset removes all added changes.
func (i *Injector) Reset() { i.used = 0 }

// Run makes all added changes in one run of the program. It returns the number of changes that the map
// refused.
func (i *Injector) Run() (failed int, err error) { return i.RunPart(0, i.used) }

// packetSize is the size of a packet for the program, in bytes: the kernel refuses packets without an Ethernet header.
const packetSize = 64

// injectArgs is struct inject_args of injector.bpf.c.
type injectArgs struct {
	_                    structs.HostLayout
	First, Count, Failed uint32
}

// RunPart makes count of the added changes, starting with index first.
func (i *Injector) RunPart(first, count int) (failed int, err error) {
	args := injectArgs{First: uint32(first), Count: uint32(count)}
	out := (*[unsafe.Sizeof(args)]byte)(unsafe.Pointer(&args))[:]
	run := ebpf.RunOptions{Context: &args, ContextOut: out}
	if i.packets {
		packet := make([]byte, packetSize)
		copy(packet, out)
		run = ebpf.RunOptions{Data: packet, DataOut: make([]byte, packetSize)}
	}
	if _, err = i.program.Run(&run); err == nil && i.packets {
		copy(out, run.DataOut)
	}
	if err != nil {
		return 0, fmt.Errorf("run injector: %w", err)
	}
	return int(args.Failed), nil
}

// Result returns the map's result of change i in its last run.
func (i *Injector) Result(change int) error {
	if code := int32(binary.NativeEndian.Uint32(i.memory[change*i.stride+4:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// Close frees the injector.
func (i *Injector) Close() error {
	err := unix.Munmap(i.memory)
	i.objects.Close()
	return err
}

func align8(n int) int { return (n + 7) &^ 7 }
