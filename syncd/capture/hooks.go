package capture

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"mapsync/bpf"
)

// hook is one kernel function and the programs for it.
type hook struct {
	symbol   string
	fexit    string
	kprobe   string // empty: only bpf(2) calls the function, and no kprobe runs there
	required bool   // without it, changes of the common map types are missed
	lookup   bool   // reports lookups
	syscall  bool   // entry point of bpf(2): the kprobe program runs at its return, fexit is not needed
}

// hooks are functions in kernel/bpf/hashtab.c and arraymap.c, and the entry points of bpf(2) in kernel/bpf/syscall.c.
var hooks = []hook{
	{symbol: "htab_map_update_elem", fexit: "fexit_update", kprobe: "kprobe_update", required: true},
	{symbol: "htab_map_delete_elem", fexit: "fexit_delete", kprobe: "kprobe_delete", required: true},
	{symbol: "htab_lru_map_update_elem", fexit: "fexit_lru_update", kprobe: "kprobe_lru_update", required: true},
	{symbol: "htab_lru_map_delete_elem", fexit: "fexit_lru_delete", kprobe: "kprobe_lru_delete", required: true},
	{symbol: "htab_map_lookup_and_delete_elem", fexit: "fexit_lookup_delete", kprobe: "kprobe_lookup_delete"},
	{symbol: "htab_lru_map_lookup_and_delete_elem", fexit: "fexit_lru_lookup_delete", kprobe: "kprobe_lru_lookup_delete"},
	{symbol: "htab_lru_map_delete_node", fexit: "fexit_evict", kprobe: "kprobe_evict"},
	{symbol: "htab_percpu_map_update_elem", fexit: "fexit_percpu_update", kprobe: "kprobe_percpu_update"},
	{symbol: "htab_lru_percpu_map_update_elem", fexit: "fexit_lru_percpu_update", kprobe: "kprobe_lru_percpu_update"},
	{symbol: "bpf_percpu_hash_update", fexit: "fexit_percpu_syscall"},
	{symbol: "htab_percpu_map_lookup_and_delete_elem", fexit: "fexit_percpu_lookup_delete"},
	{symbol: "htab_lru_percpu_map_lookup_and_delete_elem", fexit: "fexit_lru_percpu_lookup_delete"},
	{symbol: "array_map_update_elem", fexit: "fexit_array_update", kprobe: "kprobe_array_update"},
	{symbol: "bpf_percpu_array_update", fexit: "fexit_percpu_array_syscall"},
	{symbol: "htab_map_lookup_and_delete_batch", fexit: "fexit_drain"},
	{symbol: "htab_lru_map_lookup_and_delete_batch", fexit: "fexit_lru_drain"},
	{symbol: "htab_percpu_map_lookup_and_delete_batch", fexit: "fexit_percpu_drain"},
	{symbol: "htab_lru_percpu_map_lookup_and_delete_batch", fexit: "fexit_lru_percpu_drain"},
	{symbol: "__htab_map_lookup_elem", fexit: "fexit_lookup", lookup: true, required: true},
	{symbol: "htab_map_lookup_elem", fexit: "fexit_hash_lookup", lookup: true, required: true},
	{symbol: "htab_lru_map_lookup_elem", fexit: "fexit_lru_lookup", lookup: true, required: true},
	{symbol: "htab_percpu_map_lookup_elem", fexit: "fexit_percpu_lookup", lookup: true, required: true},
	{symbol: "htab_lru_percpu_map_lookup_elem", fexit: "fexit_lru_percpu_lookup", lookup: true, required: true},
	{symbol: BPFEntry, kprobe: callProgram, syscall: true},
	{symbol: bpfEntry32, kprobe: callProgram, syscall: true},
}

// Names of the programs that every attach method uses, or every kprobe, or the attach method syscall.
const (
	returnProgram     = "kretprobe_any"
	callProgram       = "kretprobe_syscall"
	syscallProgram    = "tracepoint_syscall"
	ownProcessProgram = "set_own_process"
)

// BPFEntries returns the kernel's entry points of bpf(2), that for the processes of this architecture first.
func BPFEntries() []string {
	if bpfEntry32 == "" {
		return []string{BPFEntry}
	}
	return []string{BPFEntry, bpfEntry32}
}

// program returns the program of an attach method, empty if the method does not need the function.
func (h *hook) program(attach Attach) string {
	if attach == AttachFexit {
		return h.fexit
	}
	return h.kprobe
}

// keepPrograms removes from spec the programs that attach does not need, and those without a
// function to attach to on this kernel. It returns the remaining hooks and the symbols that this
// kernel lacks.
func keepPrograms(spec *ebpf.CollectionSpec, attach Attach, lookups bool) (kept []hook, missing []string, err error) {
	wanted := map[string]bool{ownProcessProgram: attach != AttachNone, syscallProgram: attach == AttachSyscall}
	if attach == AttachFexit || attach == AttachKprobe {
		if kept, missing, err = presentHooks(attach, lookups); err != nil {
			return nil, nil, err
		}
	}
	for _, h := range kept {
		wanted[h.program(attach)] = true
	}
	if attach == AttachKprobe {
		wanted[returnProgram] = true
	}
	for name := range spec.Programs {
		if !wanted[name] {
			delete(spec.Programs, name)
		}
	}
	return kept, missing, nil
}

// presentHooks returns the hooks of an attach method whose functions exist on this kernel, and the
// symbols of the others. It uses the kernel's BTF, which lists static functions too. BTF does not list
// the entry points of bpf(2) on each kernel.
func presentHooks(attach Attach, lookups bool) (present []hook, missing []string, err error) {
	kernel, err := bpf.KernelTypes().Kernel()
	if err != nil {
		return nil, nil, fmt.Errorf("load the kernel's BTF (needs CONFIG_DEBUG_INFO_BTF): %w", err)
	}
	var lacking []string
	for _, h := range hooks {
		// The other architecture has a function without a symbol here.
		if h.symbol == "" || (h.lookup && !lookups) {
			continue
		}
		var fn *btf.Func
		if err := kernel.TypeByName(h.symbol, &fn); err == nil || h.syscall {
			if h.program(attach) != "" {
				present = append(present, h)
			}
			continue
		}
		missing = append(missing, h.symbol)
		if h.required {
			lacking = append(lacking, h.symbol)
		}
	}
	if len(lacking) > 0 {
		return nil, missing, fmt.Errorf("this kernel has no function %s to hook", strings.Join(lacking, ", "))
	}
	return present, missing, nil
}

// attachAll attaches the loaded programs. It stores each link in c, also if a later one fails.
func (c *Capture) attachAll(hooks []hook) error {
	if c.attached == AttachSyscall {
		l, err := link.AttachTracing(link.TracingOptions{Program: c.objects.Programs[syscallProgram]})
		if err != nil {
			return fmt.Errorf("attach to tracepoint sys_exit: %w", err)
		}
		c.links = append(c.links, l)
		return nil
	}
	for _, h := range hooks {
		err := c.attachOne(h)
		// BTF may list a function for which the compiler emitted another symbol.
		if errors.Is(err, os.ErrNotExist) && !h.required {
			c.missing = append(c.missing, h.symbol)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Capture) attachOne(h hook) error {
	if c.attached == AttachFexit {
		l, err := link.AttachTracing(link.TracingOptions{
			Program: c.objects.Programs[h.fexit], AttachType: ebpf.AttachTraceFExit,
		})
		if err != nil {
			return fmt.Errorf("attach fexit to %s: %w", h.symbol, err)
		}
		c.links = append(c.links, l)
		return nil
	}
	// The return probe is attached first: it ignores a return without a recorded entry.
	if h.syscall {
		return c.attachSyscall(h)
	}
	l, err := link.Kretprobe(h.symbol, c.objects.Programs[returnProgram], nil)
	if err != nil {
		return fmt.Errorf("attach return probe to %s: %w", h.symbol, err)
	}
	c.links = append(c.links, l)
	c.returns = append(c.returns, l)
	l, err = link.Kprobe(h.symbol, c.objects.Programs[h.kprobe], nil)
	if err != nil {
		return fmt.Errorf("attach kprobe to %s: %w", h.symbol, err)
	}
	c.links = append(c.links, l)
	return nil
}

func (c *Capture) attachSyscall(h hook) error {
	l, limited, err := bpf.ReturnProbe(h.symbol, c.objects.Programs[h.kprobe])
	if err != nil {
		return fmt.Errorf("attach return probe to %s: %w", h.symbol, err)
	}
	if limited != nil && c.limited == nil {
		c.limited = limited
		c.log.Warn("writes by bpf(2) are missed while many tasks wait in bpf(2)", "error", limited, "hint", bpf.ReturnProbeHint)
	}
	c.links, c.calls = append(c.links, l), append(c.calls, l)
	return nil
}

func closeLinks(links []link.Link) error {
	var errs []error
	for _, l := range links {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}
