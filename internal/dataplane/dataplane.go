// Package dataplane writes BPF maps as a load balancer's data plane does. A BPF program makes the
// writes in process context, or in a soft interrupt when packets trigger it. Tests of the hooks use
// this package, which does not depend on the hooks.
package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Op is the operation of one write.
type Op uint32

// The operations. InPlace writes 8 bytes of a value at Options.InPlaceOffset through the pointer that
// a lookup returned. It bypasses every function that could be hooked.
const (
	Update Op = iota
	Delete
	InPlace
)

// maxRunWrites is RUN_WRITES in dataplane.bpf.c.
const maxRunWrites = 16

// writeHead is the number of bytes before the key in struct write of dataplane.bpf.c.
const writeHead = 16

// Options configures a Program.
type Options struct {
	Capacity      int  // maximum number of writes in the list
	RunWrites     int  // writes per run or packet: 1 by default, at most 16
	Endless       bool // restart at the beginning of the list after its end
	InPlaceOffset int  // offset in a value at which InPlace writes 8 bytes; a multiple of 8
	// NumberValues stores the number of the write, counted from 1, in bytes 8 to 15 of each value.
	NumberValues bool
}

// Program makes a list of writes to one map. Only one CPU at a time may run it, by Run or by the
// packets of one Receiver. It is not safe for concurrent use.
type Program struct {
	objects  dataplaneObjects
	target   *ebpf.Map // the caller owns it
	options  Options
	memory   []byte // the list of writes
	progress []byte
	keySize  int
	stride   int
	used     int
}

// Open loads a program that writes target, a HASH or LRU_HASH map. The caller keeps ownership of
// target. Open needs CAP_BPF.
func Open(target *ebpf.Map, o Options) (_ *Program, err error) {
	o.RunWrites = max(o.RunWrites, 1)
	if o.RunWrites > maxRunWrites {
		return nil, fmt.Errorf("open data plane: %d writes a run, at most %d", o.RunWrites, maxRunWrites)
	}
	p := &Program{options: o, keySize: int(target.KeySize())}
	p.stride = writeHead + pad8(p.keySize) + pad8(int(target.ValueSize()))
	if err := p.load(target); err != nil {
		return nil, fmt.Errorf("open data plane: %w", err)
	}
	if p.memory, err = mapMemory(p.objects.Writes, o.Capacity*p.stride); err == nil {
		p.progress, err = mapMemory(p.objects.Progress, int(unsafe.Sizeof(dataplaneProgress{})))
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Program) load(target *ebpf.Map) error {
	spec, err := loadDataplane()
	if err != nil {
		return err
	}
	p.target = target
	if err := p.configure(spec); err != nil {
		return err
	}
	return spec.LoadAndAssign(&p.objects, &ebpf.CollectionOptions{
		MapReplacements: map[string]*ebpf.Map{dataplaneMapTarget: target},
	})
}

// configure sets the constants and the sizes of the maps of an object that makes the writes.
func (p *Program) configure(spec *ebpf.CollectionSpec) error {
	target := p.target
	constants := map[string]any{
		dataplaneVarKeySize: target.KeySize(), dataplaneVarValueSize: target.ValueSize(),
		dataplaneVarRunWrites: uint32(p.options.RunWrites), dataplaneVarEndless: p.options.Endless,
		dataplaneVarPlaceAt:      uint32(p.options.InPlaceOffset),
		dataplaneVarNumberValues: p.options.NumberValues,
	}
	for name, value := range constants {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set constant %s: %w", name, err)
		}
	}
	writes := spec.Maps[dataplaneMapWrites]
	writes.MaxEntries, writes.ValueSize = uint32(p.options.Capacity), uint32(p.stride)
	t := spec.Maps[dataplaneMapTarget]
	t.Type, t.Flags = target.Type(), target.Flags()
	t.KeySize, t.ValueSize, t.MaxEntries = target.KeySize(), target.ValueSize(), target.MaxEntries()
	return nil
}

func mapMemory(m *ebpf.Map, size int) ([]byte, error) {
	page := os.Getpagesize()
	size = (size + page - 1) / page * page
	memory, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map array into memory: %w", err)
	}
	return memory, nil
}

// Add appends a write to the list. flags apply to an update. Add panics if the list is full.
func (p *Program) Add(op Op, flags ebpf.MapUpdateFlags, key, value []byte) {
	if p.used == p.options.Capacity {
		panic("dataplane: more writes than its capacity")
	}
	w := p.memory[p.used*p.stride:][:p.stride]
	binary.NativeEndian.PutUint32(w, uint32(op))
	binary.NativeEndian.PutUint32(w[4:], 0)
	binary.NativeEndian.PutUint64(w[8:], uint64(flags))
	copy(w[writeHead:], key)
	copy(w[writeHead+pad8(p.keySize):], value)
	p.used++
	atomic.StoreUint32(&p.counters().End, uint32(p.used))
}

// Reset empties the list.
func (p *Program) Reset() {
	p.used = 0
	c := p.counters()
	atomic.StoreUint32(&c.End, 0)
	atomic.StoreUint32(&c.Next, 0)
}

// Run makes all writes of the list in process context and returns to the beginning of the list. It
// returns the number of writes that the map refused.
func (p *Program) Run() (failed int, err error) {
	c := p.counters()
	atomic.StoreUint32(&c.Next, 0)
	before := p.Failed()
	for range (p.used + p.options.RunWrites - 1) / p.options.RunWrites {
		if err := p.RunOnce(1); err != nil {
			return 0, err
		}
	}
	return int(p.Failed() - before), nil
}

// testPacket is the smallest packet that every kernel accepts for a test run.
var testPacket [64]byte

// RunOnce runs the program repeat times in one system call, in process context. A signal may end the
// call early.
func (p *Program) RunOnce(repeat int) error {
	_, err := p.objects.MakeWrites.Run(&ebpf.RunOptions{Data: testPacket[:], Repeat: uint32(repeat)})
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("run data plane: %w", err)
	}
	return nil
}

// Result returns the map's result of write i of the list.
func (p *Program) Result(i int) error {
	code := int32(atomic.LoadUint32((*uint32)(unsafe.Pointer(&p.memory[i*p.stride+4]))))
	if code == 0 {
		return nil
	}
	return unix.Errno(-code)
}

// Done returns the number of writes since Open. It makes no system call.
func (p *Program) Done() uint64 { return atomic.LoadUint64(&p.counters().Done) }

// Failed returns the number of writes that the map refused since Open. It makes no system call.
func (p *Program) Failed() uint64 { return atomic.LoadUint64(&p.counters().Failed) }

// Runs returns the number of program runs that ended since Open. It makes no system call.
func (p *Program) Runs() uint64 { return atomic.LoadUint64(&p.counters().Runs) }

// LastCPU returns the CPU of the last run. It makes no system call.
func (p *Program) LastCPU() int { return int(atomic.LoadUint64(&p.counters().Cpu)) }

func (p *Program) counters() *dataplaneProgress {
	return (*dataplaneProgress)(unsafe.Pointer(&p.progress[0]))
}

// Close frees the program. The caller must close its receivers first.
func (p *Program) Close() error {
	errs := []error{p.objects.Close()}
	for _, memory := range []*[]byte{&p.memory, &p.progress} {
		if *memory != nil {
			errs = append(errs, unix.Munmap(*memory))
			*memory = nil
		}
	}
	return errors.Join(errs...)
}

func pad8(n int) int { return (n + 7) &^ 7 }
