// Package capture hooks the kernel's hash-map functions and turns the changes of watched maps into
// changes of their tables.
//
// The hooks run after the kernel's function and receive its result, so a failed write is never
// reported. They report the writer (a packet, a process, a bpf(2) call, syncd itself), number the
// events per CPU, and count the events that they could not deliver.
package capture

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"

	"mapsync/bpf"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Capture watches maps. It owns its BPF programs, their buffer and their links.
type Capture struct {
	options Options
	log     *slog.Logger

	objects  *ebpf.Collection
	attached Attach
	missing  []string
	links    []link.Link
	returns  []link.Link // the return probes among links, except those of calls
	calls    []link.Link // the return probes of the system call bpf(2) among links
	skips    skips
	// limited is the reason if the probes in calls have the kernel's default limit of tasks in bpf(2).
	limited error
	// lookupsErr is why the hook on lookups is not attached. Nil: it is.
	lookupsErr error
	source     source
	slots      *slots
	watches    *watches
	uses       *useArray

	mu      sync.Mutex // guards watches and targets
	targets map[uint32]*target

	pump pump

	closeOnce sync.Once
	closeErr  error
}

// Open loads the programs and attaches them. With AttachAuto, it tries fexit first and kprobe
// second. The error names the feature or capability that the kernel or this process lacks. The
// caller closes the Capture.
func Open(o Options) (*Capture, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Attach == AttachFexit {
		return openFexit(o)
	}
	if o.Attach != AttachAuto {
		return open(o, o.Attach)
	}
	c, fexitErr := openFexit(o)
	if fexitErr == nil {
		return c, nil
	}
	c, err := open(o, AttachKprobe)
	if err != nil {
		return nil, fmt.Errorf("attach neither by fexit (%w) nor by kprobe: %w", fexitErr, err)
	}
	o.Logger.Info("fexit is unavailable, falling back to kprobe", "reason", fexitErr)
	return c, nil
}

// openFexit attaches the other hooks if the one on lookups cannot be attached.
func openFexit(o Options) (*Capture, error) {
	c, err := open(o, AttachFexit)
	if err == nil || !o.hooksLookups() {
		return c, err
	}
	o.Lookups, o.Uses = false, false
	without, otherErr := open(o, AttachFexit)
	if otherErr != nil {
		return nil, otherErr
	}
	without.lookupsErr = err
	return without, nil
}

func open(o Options, attach Attach) (_ *Capture, err error) {
	c := &Capture{options: o, log: o.Logger, attached: attach, targets: make(map[uint32]*target)}
	if attach != AttachFexit {
		c.options.Lookups, c.options.Uses = false, false
	}
	if !c.options.hooksLookups() {
		c.lookupsErr = errNoLookups
	}
	defer func() {
		if err != nil {
			err = errors.Join(addMissingCapabilities(err, attach, o.Buffer), c.Close())
		}
	}()
	hooks, err := c.load(attach)
	if err != nil {
		return nil, err
	}
	if c.slots, err = mapSlots(c.objects.Maps["slots"]); err != nil {
		return nil, err
	}
	if c.watches, err = mapWatches(c.objects.Maps["watches"]); err != nil {
		return nil, err
	}
	if c.uses, err = mapUses(c.objects.Maps["uses"]); err != nil {
		return nil, err
	}
	if c.source, err = openSource(&o, c.objects.Maps); err != nil {
		return nil, err
	}
	if attach != AttachNone {
		if err = c.attachAll(hooks); err != nil {
			return nil, err
		}
	}
	c.pump.init(c)
	c.logOpen()
	return c, nil
}

// setConstants sets the constants of the programs to the options.
func (c *Capture) setConstants(spec *ebpf.CollectionSpec) error {
	constants := map[string]any{"use_perf": c.options.Buffer == BufferPerf, "emit_own": c.options.EmitOwn}
	if c.options.hooksLookups() {
		maps.Copy(constants, lookupConstants(c.options.Tick))
	}
	for name, value := range constants {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set BPF constant %s: %w", name, err)
		}
	}
	return nil
}

// load loads the programs that attach needs, and sizes the buffer.
func (c *Capture) load(attach Attach) ([]hook, error) {
	spec, err := bpf.LoadCapture()
	if err != nil {
		return nil, fmt.Errorf("read BPF object: %w", err)
	}
	bpf.NameMaps(spec)
	hooks, missing, err := keepPrograms(spec, attach, c.options.hooksLookups())
	if err != nil {
		return nil, err
	}
	c.missing = missing
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count possible CPUs: %w", err)
	}
	spec.Maps["slots"].MaxEntries = uint32(cpus * slotsPerCPU)
	if c.options.Buffer == BufferRing {
		spec.Maps["ring"].MaxEntries = uint32(c.options.BufferSize)
	}
	if !c.options.Uses {
		spec.Maps["uses"].MaxEntries = 1
	}
	if err := c.setConstants(spec); err != nil {
		return nil, err
	}
	if err := c.loadObjects(spec); err != nil {
		return nil, fmt.Errorf("load BPF programs for %s: %w", attach, err)
	}
	if attach == AttachNone {
		return nil, nil // without hooks, the programs need not identify this process
	}
	// The data has at least the size of an Ethernet header, which the kernel requires.
	if _, err := c.objects.Programs[ownProcessProgram].Run(&ebpf.RunOptions{Data: make([]byte, 64)}); err != nil {
		return nil, fmt.Errorf("run BPF program %s: %w", ownProcessProgram, err)
	}
	return hooks, nil
}

// loadObjects creates the maps and loads the programs. It creates a ring by itself, because that is a long call.
func (c *Capture) loadObjects(spec *ebpf.CollectionSpec) (err error) {
	replace := map[string]*ebpf.Map{}
	if c.options.OwnWriteMarks != nil {
		replace["own_write_marks"] = c.options.OwnWriteMarks
	}
	if c.options.Buffer == BufferRing {
		var ring *ebpf.Map
		c.options.MeasureRing(func() { ring, err = ebpf.NewMap(spec.Maps["ring"]) })
		if err != nil {
			return fmt.Errorf("create ring buffer: %w", err)
		}
		defer ring.Close() // the collection has a copy
		replace["ring"] = ring
	}
	c.objects, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replace, Cache: bpf.KernelTypes()})
	return err
}

func (c *Capture) logOpen() {
	cpus, _ := ebpf.PossibleCPU() // load has already made this call without an error
	c.log.Info("capture opened", "attach", c.attached, "buffer", c.options.Buffer,
		"buffer_size", c.options.BufferSize,
		"buffer_memory_bytes", BufferMemory(c.options.Buffer, c.options.BufferSize, cpus),
		"missing_symbols", c.missing, "lookups", c.lookupsErr == nil)
}

// Attached returns the attach method of the hooks: any but AttachAuto.
func (c *Capture) Attached() Attach { return c.attached }

// HooksMaps reports whether hooks are attached to the kernel's map functions.
func (c *Capture) HooksMaps() bool {
	return c.attached == AttachFexit || c.attached == AttachKprobe
}

// Missing returns the optional kernel functions that this kernel lacks.
func (c *Capture) Missing() []string { return c.missing }

// Maps returns the BPF maps that a program needs to report changes through the buffer as a hook
// does, by their name in bpf/event.h. Only tests and benchmarks need them: their injector replaces the
// hooks. The capture owns the maps.
func (c *Capture) Maps() map[string]*ebpf.Map {
	shared := make(map[string]*ebpf.Map)
	for _, name := range []string{"slots", "watches", "ring", "perf"} {
		shared[name] = c.objects.Maps[name]
	}
	return shared
}

// Close detaches the hooks and frees all resources. It ends Run. It may be called more than once.
func (c *Capture) Close() error {
	c.closeOnce.Do(func() { c.closeErr = c.close() })
	return c.closeErr
}

func (c *Capture) close() error {
	// Detaching takes seconds, and Stats may be called meanwhile.
	c.latestSkipped()
	c.skips.mu.Lock()
	c.skips.detached = true
	c.skips.mu.Unlock()

	errs := []error{closeLinks(c.links)}
	if c.source != nil {
		errs = append(errs, c.source.close())
	}
	// Run and Stats may still read the mapped memory.
	c.pump.mu.Lock()
	defer c.pump.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.slots != nil {
		c.pump.final = c.slots.sum()
		errs = append(errs, c.slots.close())
		c.slots = nil
	}
	if c.watches != nil {
		errs = append(errs, c.watches.close())
		c.watches = nil
	}
	if c.uses != nil {
		errs = append(errs, c.uses.close())
	}
	if c.objects != nil {
		c.objects.Close()
	}
	return errors.Join(errs...)
}
