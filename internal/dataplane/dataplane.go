// Package dataplane writes BPF maps as a load balancer's data plane does: from a
// BPF program, in process context or, by packets, in a soft interrupt. Tests of the
// hooks use it; it knows nothing of them.
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

// Op is what one write does.
type Op uint32

// The operations. InPlace writes 8 bytes of a value, those at Options.PlaceAt, through
// the pointer that a lookup returned, past every function that could be hooked.
const (
	Update Op = iota
	Delete
	InPlace
)

// maxRunWrites is RUN_WRITES in dataplane.bpf.c.
const maxRunWrites = 16

// writeHead is the bytes before the key in struct write of dataplane.bpf.c.
const writeHead = 16

// Options configures a Program.
type Options struct {
	Capacity  int  // writes that it holds
	RunWrites int  // writes made by one run or packet: 1 by default, at most 16
	Endless   bool // begin again at the end of the list
	PlaceAt   int  // where in a value InPlace writes 8 bytes; a multiple of 8
	// NumberValues puts the number of the write, from 1, into bytes 8 to 15 of
	// each value.
	NumberValues bool
}

// Program makes a list of writes to one map. One CPU at a time may run it, by Run
// or by the packets of one Receiver. It is not safe for concurrent use.
type Program struct {
	objects  dataplaneObjects
	options  Options
	memory   []byte // the writes
	progress []byte
	keySize  int
	stride   int
	used     int
}

// Open loads a program that writes target, a HASH or LRU_HASH map, which stays the
// caller's. It needs CAP_BPF.
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
	constants := map[string]any{
		dataplaneVarKeySize: target.KeySize(), dataplaneVarValueSize: target.ValueSize(),
		dataplaneVarRunWrites: uint32(p.options.RunWrites), dataplaneVarEndless: p.options.Endless,
		dataplaneVarPlaceAt:      uint32(p.options.PlaceAt),
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
	return spec.LoadAndAssign(&p.objects, &ebpf.CollectionOptions{
		MapReplacements: map[string]*ebpf.Map{dataplaneMapTarget: target},
	})
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

// Add puts a write at the end of the list. flags are those of an update. It panics
// when the list is full.
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

// Run makes all writes of the list in process context, and goes back to its
// beginning. It returns how many the map refused.
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

// packet is the smallest that every kernel takes for a test run.
var packet [64]byte

// RunOnce has the kernel run the program repeat times in one call, in process
// context. A signal may end that early.
func (p *Program) RunOnce(repeat int) error {
	_, err := p.objects.MakeWrites.Run(&ebpf.RunOptions{Data: packet[:], Repeat: uint32(repeat)})
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("run data plane: %w", err)
	}
	return nil
}

// Result returns what the map answered to the write at place i of the list.
func (p *Program) Result(i int) error {
	code := int32(atomic.LoadUint32((*uint32)(unsafe.Pointer(&p.memory[i*p.stride+4]))))
	if code == 0 {
		return nil
	}
	return unix.Errno(-code)
}

// Done returns how many writes were made since Open. It is no system call.
func (p *Program) Done() uint64 { return atomic.LoadUint64(&p.counters().Done) }

// Failed returns how many writes the map refused since Open. It is no system call.
func (p *Program) Failed() uint64 { return atomic.LoadUint64(&p.counters().Failed) }

// Runs returns how often the program ran since Open. It is no system call.
func (p *Program) Runs() uint64 { return atomic.LoadUint64(&p.counters().Runs) }

// LastCPU returns the CPU of the last run. It is no system call.
func (p *Program) LastCPU() int { return int(atomic.LoadUint64(&p.counters().Cpu)) }

func (p *Program) counters() *dataplaneProgress {
	return (*dataplaneProgress)(unsafe.Pointer(&p.progress[0]))
}

// Close frees the program. Its receivers must have been closed.
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
