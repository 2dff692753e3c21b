package drained

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"

	"mapsync/bpf"
)

// Names of programs and maps in bpf/drain.bpf.c.
const (
	addBackProgram = "add_back"
	sumsMap        = "drain_sums"
	stateMapName   = "drain_state"
	nextMap        = "drain_next"
	backMap        = "drain_back"

	constantsSection = ".rodata"
)

// part is a pair of programs: at the beginning and at the end of a call.
type part struct {
	begin, end string
	// rest is the beginning of the names of the programs that add the entries of a batch. Empty: end adds the entry.
	rest   string
	symbol string // the function of a program that fexit attaches
}

// parts returns the pairs of programs of a method.
func (o *Options) parts(m Method) ([]part, error) {
	switch m {
	case ByKprobe:
		return []part{{begin: "kprobe_syscall", end: "kretprobe_syscall", rest: "kretprobe_syscall"}}, nil
	case BySyscall:
		return []part{{begin: "tracepoint_enter", end: "tracepoint_exit", rest: "tracepoint_exit"}}, nil
	}
	prefix := "htab_map_"
	if o.Type == ebpf.LRUHash {
		prefix = "htab_lru_map_"
	}
	list := []part{{"fentry_batch", "fexit_batch", "fexit_batch", prefix + "lookup_and_delete_batch"}}
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, fmt.Errorf("load the kernel's BTF (needs CONFIG_DEBUG_INFO_BTF): %w", err)
	}
	one := part{begin: "fentry_elem", end: "fexit_elem", symbol: prefix + "lookup_and_delete_elem"}
	var fn *btf.Func
	if kernel.TypeByName(one.symbol, &fn) == nil { // from 5.14 on
		list = append(list, one)
	}
	return list, nil
}

// restSuffix selects the programs that add the entries of a batch.
func restSuffix() string {
	if features.HaveProgramHelper(ebpf.SocketFilter, asm.FnLoop) == nil {
		return "_loop"
	}
	return "_tail"
}

// load loads the programs of the parts, and the one of AddBack.
func (s *Sums) load(spec *ebpf.CollectionSpec, parts []part, stateMap *ebpf.Map) error {
	wanted := []string{addBackProgram}
	suffix := restSuffix()
	for _, p := range parts {
		names := []string{p.begin, p.end}
		if p.rest != "" {
			names = append(names, p.rest+suffix)
		}
		for _, name := range names {
			if p.symbol != "" {
				spec.Programs[name].AttachTo = p.symbol
			}
		}
		wanted = append(wanted, names...)
	}
	for name := range spec.Programs {
		if !slices.Contains(wanted, name) {
			delete(spec.Programs, name)
		}
	}
	// The headers declare maps and variables of other programs.
	for name := range spec.Maps {
		if !strings.HasPrefix(name, "drain_") && name != constantsSection {
			delete(spec.Maps, name)
		}
	}
	for name, v := range spec.Variables {
		if v.SectionName != constantsSection {
			delete(spec.Variables, name)
		}
	}
	objects, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		MapReplacements: map[string]*ebpf.Map{sumsMap: s.sums, stateMapName: stateMap},
	})
	if err != nil {
		return fmt.Errorf("load BPF programs: %w", err)
	}
	if s.objects != nil {
		s.objects.Close()
	}
	s.objects, s.back = objects, objects.Maps[backMap]
	for _, p := range parts {
		if p.rest == "" {
			continue
		}
		if err := objects.Maps[nextMap].Put(uint32(0), objects.Programs[p.rest+suffix]); err != nil {
			return fmt.Errorf("store the program of a tail call: %w", err)
		}
	}
	return nil
}

// spec returns the programs and maps with the sizes and constants of the options.
func (o *Options) spec() (*ebpf.CollectionSpec, error) {
	spec, err := bpf.LoadDrain()
	if err != nil {
		return nil, fmt.Errorf("read BPF object: %w", err)
	}
	bpf.NameMaps(spec)
	sums := spec.Maps[sumsMap]
	sums.KeySize, sums.ValueSize, sums.MaxEntries = uint32(o.KeySize+OriginSize), uint32(o.ValueSize), uint32(o.MaxEntries)
	sums.Key, sums.Value = nil, nil
	return spec, o.constants(spec)
}

// version identifies the programs of a method.
func version(spec *ebpf.CollectionSpec, m Method, parts []part) (uint64, error) {
	h := fnv.New64a()
	h.Write([]byte(string(m) + restSuffix()))
	for _, p := range parts {
		for _, name := range []string{p.begin, p.end, p.rest + restSuffix()} {
			program := spec.Programs[name]
			if program == nil {
				continue
			}
			tag, err := program.Tag()
			if err != nil {
				return 0, fmt.Errorf("identify BPF program %s: %w", name, err)
			}
			h.Write([]byte(tag))
		}
	}
	return h.Sum64(), nil
}

// openPrograms continues with the pinned programs, or attaches others by the first method that the kernel accepts.
func (s *Sums) openPrograms(stateMap *ebpf.Map) error {
	var errs []error
	for _, m := range s.options.Methods {
		err := s.attach(m, stateMap)
		if err == nil {
			s.method = m
			return nil
		}
		errs = append(errs, fmt.Errorf("by %s: %w", m, err))
	}
	return fmt.Errorf("%w: attach the programs that see what is drained: %w", ErrUnsupported, errors.Join(errs...))
}

func (s *Sums) attach(m Method, stateMap *ebpf.Map) error {
	spec, err := s.options.spec()
	if err != nil {
		return err
	}
	parts, err := s.options.parts(m)
	if err != nil {
		return err
	}
	v, err := version(spec, m, parts)
	if err != nil {
		return err
	}
	if atomic.LoadUint64(&s.state.Version) == v && s.openLinks(2*len(parts)) == nil {
		s.options.Logger.Info("continuing the sums of drained entries", "folder", s.options.Folder, "entries", s.Stats().Entries)
		return s.load(spec, nil, stateMap)
	}
	if err := s.load(spec, parts, stateMap); err != nil {
		return err
	}
	if err := s.removePrograms(); err != nil {
		return err
	}
	for _, p := range parts {
		if err := s.attachPart(m, p); err != nil {
			return errors.Join(err, s.closeLinks())
		}
	}
	s.pinPrograms()
	atomic.StoreUint64(&s.state.Version, v)
	return nil
}

// attachPart attaches a pair of programs. The one at the end is first: an end without a beginning is harmless while
// nothing is followed.
func (s *Sums) attachPart(m Method, p part) error {
	end, begin := s.objects.Programs[p.end], s.objects.Programs[p.begin]
	type attachment struct {
		program *ebpf.Program
		attach  func(*ebpf.Program) (link.Link, error)
	}
	tracing := func(program *ebpf.Program) (link.Link, error) {
		return link.AttachTracing(link.TracingOptions{Program: program})
	}
	list := []attachment{{end, tracing}, {begin, tracing}}
	if m == ByKprobe {
		list = nil
		for _, symbol := range s.options.Entries {
			list = append(list,
				attachment{end, func(program *ebpf.Program) (link.Link, error) { return link.Kretprobe(symbol, program, nil) }},
				attachment{begin, func(program *ebpf.Program) (link.Link, error) { return link.Kprobe(symbol, program, nil) }})
		}
	}
	for i, a := range list {
		l, err := a.attach(a.program)
		if errors.Is(err, fs.ErrNotExist) && i >= 2 {
			continue // this kernel has no 32-bit system calls
		}
		if err != nil {
			return err
		}
		s.links = append(s.links, l)
	}
	return nil
}

func (s *Sums) closeLinks() error {
	var errs []error
	for _, l := range s.links {
		errs = append(errs, l.Close())
	}
	s.links = nil
	return errors.Join(errs...)
}
