package drained

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
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

// Names of programs and maps in bpf/drain.bpf.c and bpf/drain_sums.h.
const (
	addBackProgram = "add_back"
	sumsMap        = "drain_sums"
	formerSumsMap  = "former_sums"
	stateMapName   = "drain_state"
	nextMap        = "drain_next"
	backMap        = "drain_back"
	callsMap       = "drain_calls"

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
	kernel, err := bpf.KernelTypes().Kernel()
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

// restrict removes from spec the programs other than those of the parts and the one of AddBack, and the maps and variables of
// other programs.
func restrict(spec *ebpf.CollectionSpec, parts []part) {
	wanted := []string{addBackProgram}
	for _, p := range parts {
		names := []string{p.begin, p.end}
		if p.rest != "" {
			names = append(names, p.rest+restSuffix())
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
}

// load loads the programs of the parts, and the one of AddBack, for a map of sums. The caller closes the objects.
func (s *Sums) load(spec *ebpf.CollectionSpec, parts []part, stateMap, sums *ebpf.Map) (*ebpf.Collection, error) {
	restrict(spec, parts)
	objects, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		MapReplacements: map[string]*ebpf.Map{sumsMap: sums, stateMapName: stateMap, callsMap: s.state.calls},
		Cache:           bpf.KernelTypes(),
	})
	if err != nil {
		return nil, fmt.Errorf("load BPF programs: %w", err)
	}
	for _, p := range parts {
		if p.rest == "" {
			continue
		}
		if err := objects.Maps[nextMap].Put(uint32(0), objects.Programs[p.rest+restSuffix()]); err != nil {
			objects.Close()
			return nil, fmt.Errorf("store the program of a tail call: %w", err)
		}
	}
	return objects, nil
}

// spec returns the programs and maps with the sizes and constants of the options, for a generation of a method.
func (o *Options) spec(m Method, generation uint64) (*ebpf.CollectionSpec, error) {
	spec, err := bpf.LoadDrain()
	if err != nil {
		return nil, fmt.Errorf("read BPF object: %w", err)
	}
	bpf.NameMaps(spec)
	sums := spec.Maps[sumsMap]
	sums.KeySize, sums.ValueSize, sums.MaxEntries = uint32(o.KeySize+OriginSize), uint32(o.ValueSize), uint32(o.MaxEntries)
	sums.Key, sums.Value = nil, nil
	return spec, o.constants(spec, m, generation)
}

// version identifies the programs of a method, and the functions to which they are attached.
func version(m Method, parts []part) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, bpf.DrainVersion(), m, restSuffix(), parts, bpf.ReturnProbeCalls)
	return h.Sum64()
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
	return fmt.Errorf("%w: attach the programs that record drained entries: %w", ErrUnsupported, errors.Join(errs...))
}

// attach continues with the pinned programs if they are those of the method. Otherwise it attaches programs of the next
// generation, and then makes them add instead of the former ones, at once. A call in progress meanwhile is added once, or
// counts as missed: while fexit programs are attached, the kernel skips the former ones at the end of calls in progress
// (bpf_tramp_image_put).
func (s *Sums) attach(m Method, stateMap *ebpf.Map) error {
	generation := atomic.LoadUint64(&s.state.Generation)
	spec, err := s.options.spec(m, generation+1)
	if err != nil {
		return err
	}
	parts, err := s.options.parts(m)
	if err != nil {
		return err
	}
	v := version(m, parts)
	if generation > 0 && atomic.LoadUint64(&s.state.Version) == v && s.sums.MaxEntries() == uint32(s.options.MaxEntries) &&
		s.openLinks(generation, s.options.linksOf(m, parts)) == nil {
		s.options.Logger.Info("continuing the sums of drained entries", "folder", s.options.Folder, "entries", s.Stats().Entries)
		objects, err := s.load(spec, nil, stateMap, s.sums)
		if err != nil {
			return err
		}
		s.objects, s.back = objects, objects.Maps[backMap]
		return nil
	}
	// A former syncd may have been killed after it pinned programs of the next generation.
	if err := s.removePins(func(pinned uint64) bool { return pinned > generation }); err != nil {
		return err
	}
	sums, err := s.nextSums(spec)
	if err != nil {
		return err
	}
	atomic.StoreUint32(&s.state.Exclusive, 0)
	objects, err := s.load(spec, parts, stateMap, sums)
	if err == nil {
		s.objects, s.back = objects, objects.Maps[backMap]
		err = s.attachParts(m, parts)
	}
	if err == nil && generation > 0 {
		err = s.state.awaitCalls(s.formerAreAttached(generation))
	}
	if err != nil {
		if objects != nil {
			objects.Close()
			s.objects = nil
		}
		return errors.Join(err, s.closeLinks(), sums.Close())
	}
	s.activate(generation+1, v, sums)
	return nil
}

// nextSums returns the map of sums of the next generation: the present one, unless it has another size.
func (s *Sums) nextSums(spec *ebpf.CollectionSpec) (*ebpf.Map, error) {
	if s.sums != nil && s.sums.MaxEntries() == uint32(s.options.MaxEntries) {
		return s.sums.Clone()
	}
	var sums *ebpf.Map
	var err error
	s.options.MeasureCreate(func() { sums, err = ebpf.NewMap(spec.Maps[sumsMap]) })
	if err != nil {
		return nil, fmt.Errorf("create the map of sums: %w", err)
	}
	return sums, nil
}

// activate pins what the attached programs need to continue without syncd, and makes them add.
func (s *Sums) activate(generation, version uint64, sums *ebpf.Map) {
	s.pin(sums.Pin, pinOf(pinSums, generation))
	s.pin(s.objects.Maps[nextMap].Pin, pinOf(pinNext, generation))
	for i, l := range s.links {
		s.pin(l.Pin, pinOfLink(generation, i))
	}
	if s.sums != nil {
		_ = s.sums.Close() // mergeFormer opens the pin
	}
	s.sums = sums
	atomic.StoreUint64(&s.state.Generation, generation)
	if s.limited {
		version = 0 // the next start attaches return probes again
	}
	atomic.StoreUint64(&s.state.Version, version)
}

// linksOf returns the number of links of a method, without those for 32-bit processes.
func (o *Options) linksOf(m Method, parts []part) int {
	if m == ByKprobe {
		return 2 // of the first entry point
	}
	return 2 * len(parts)
}

// openLinks opens the pinned links of a generation. It fails unless there are at least n.
func (s *Sums) openLinks(generation uint64, n int) error {
	for i := 0; ; i++ {
		l, err := link.LoadPinnedLink(filepath.Join(s.options.Folder, pinOfLink(generation, i)), nil)
		if err != nil && i >= n && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return errors.Join(fmt.Errorf("open pinned link: %w", err), s.closeLinks())
		}
		s.links = append(s.links, l)
	}
}

// formerAreAttached reports whether the programs of a generation are attached without a syncd.
func (s *Sums) formerAreAttached(generation uint64) bool {
	if s.options.Folder == "" {
		return false
	}
	_, err := os.Stat(filepath.Join(s.options.Folder, pinOfLink(generation, 0)))
	return err == nil
}

func (s *Sums) attachParts(m Method, parts []part) error {
	for _, p := range parts {
		if err := s.attachPart(m, p); err != nil {
			return err
		}
	}
	return nil
}

// attachPart attaches a pair of programs. They add nothing before they are activated.
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
				attachment{end, func(program *ebpf.Program) (link.Link, error) { return s.returnProbe(symbol, program) }},
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

// returnProbe attaches program to the returns of an entry point of bpf(2).
func (s *Sums) returnProbe(symbol string, program *ebpf.Program) (link.Link, error) {
	l, limited, err := bpf.ReturnProbe(symbol, program)
	if limited != nil && err == nil && !s.limited {
		s.limited = true
		s.options.Logger.Warn("calls that drain a map are missed while many tasks wait in bpf(2)", "error", limited,
			"hint", bpf.ReturnProbeHint)
	}
	return l, err
}

func (s *Sums) closeLinks() error {
	var errs []error
	for _, l := range s.links {
		errs = append(errs, l.Close())
	}
	s.links = nil
	return errors.Join(errs...)
}
