package capture

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
)

// hook is one kernel function in kernel/bpf/hashtab.c and the programs for it.
type hook struct {
	symbol   string
	fexit    string
	kprobe   string // empty: only bpf(2) calls the function, and no kprobe runs there
	required bool   // without it, changes of the common map types are missed
}

var hooks = []hook{
	{"htab_map_update_elem", "fexit_update", "kprobe_update", true},
	{"htab_map_delete_elem", "fexit_delete", "kprobe_delete", true},
	{"htab_lru_map_update_elem", "fexit_lru_update", "kprobe_lru_update", true},
	{"htab_lru_map_delete_elem", "fexit_lru_delete", "kprobe_lru_delete", true},
	{"htab_map_lookup_and_delete_elem", "fexit_lookup_delete", "kprobe_lookup_delete", false},
	{"htab_lru_map_lookup_and_delete_elem", "fexit_lru_lookup_delete", "kprobe_lru_lookup_delete", false},
	{"htab_lru_map_delete_node", "fexit_evict", "kprobe_evict", false},
	{"htab_percpu_map_update_elem", "fexit_percpu_update", "kprobe_percpu_update", false},
	{"htab_lru_percpu_map_update_elem", "fexit_lru_percpu_update", "kprobe_lru_percpu_update", false},
	{"bpf_percpu_hash_update", "fexit_percpu_syscall", "", false},
	{"htab_percpu_map_lookup_and_delete_elem", "fexit_percpu_lookup_delete", "", false},
	{"htab_lru_percpu_map_lookup_and_delete_elem", "fexit_lru_percpu_lookup_delete", "", false},
}

// Names of the programs that every attach method uses, or every kprobe.
const (
	returnProgram     = "kretprobe_any"
	ownProcessProgram = "set_own_process"
)

// keepPrograms removes from spec the programs that attach does not need, and those without a
// function to attach to on this kernel. It returns the remaining hooks and the symbols that this
// kernel lacks.
func keepPrograms(spec *ebpf.CollectionSpec, attach Attach) (kept []hook, missing []string, err error) {
	wanted := map[string]bool{ownProcessProgram: attach != AttachNone}
	if attach != AttachNone {
		if kept, missing, err = presentHooks(); err != nil {
			return nil, nil, err
		}
	}
	for _, h := range kept {
		switch {
		case attach == AttachFexit:
			wanted[h.fexit] = true
		case h.kprobe != "":
			wanted[h.kprobe], wanted[returnProgram] = true, true
		}
	}
	for name := range spec.Programs {
		if !wanted[name] {
			delete(spec.Programs, name)
		}
	}
	return kept, missing, nil
}

// presentHooks returns the hooks whose functions exist on this kernel, and the symbols of the
// others. It uses the kernel's BTF, which lists static functions too.
func presentHooks() (present []hook, missing []string, err error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, nil, fmt.Errorf("load the kernel's BTF (needs CONFIG_DEBUG_INFO_BTF): %w", err)
	}
	var lacking []string
	for _, h := range hooks {
		var fn *btf.Func
		if err := kernel.TypeByName(h.symbol, &fn); err == nil {
			present = append(present, h)
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
	for _, h := range hooks {
		if c.attached == AttachKprobe && h.kprobe == "" {
			continue
		}
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
	l, err := link.Kretprobe(h.symbol, c.objects.Programs[returnProgram], nil)
	if err != nil {
		return fmt.Errorf("attach return probe to %s: %w", h.symbol, err)
	}
	c.links, c.returns = append(c.links, l), append(c.returns, l)
	l, err = link.Kprobe(h.symbol, c.objects.Programs[h.kprobe], nil)
	if err != nil {
		return fmt.Errorf("attach kprobe to %s: %w", h.symbol, err)
	}
	c.links = append(c.links, l)
	return nil
}

func closeLinks(links []link.Link) error {
	var errs []error
	for _, l := range links {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}
