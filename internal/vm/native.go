package vm

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// CanAttachNatively reports whether this process can attach kprobe and fexit programs on the machine's
// own kernel. It tries to attach them and returns the reason if it fails. Tests that need hooks run
// natively if possible, else in a virtual machine.
func CanAttachNatively() (ok bool, reason string) {
	for _, probe := range []func() error{hasRights, hasBTF, hasKprobes, tryKprobe, tryFexit} {
		if err := probe(); err != nil {
			return false, err.Error()
		}
	}
	return true, "kprobe and fexit programs attach"
}

func hasRights() error {
	if os.Geteuid() != 0 {
		return errors.New("not root")
	}
	return nil
}

func hasBTF() error {
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		return errors.New("kernel has no BTF of itself (CONFIG_DEBUG_INFO_BTF)")
	}
	return nil
}

// hasKprobes checks for one of the two interfaces to create a kprobe: the perf PMU (since 4.17) or the
// tracefs file. A kernel without both lacks CONFIG_KPROBES.
func hasKprobes() error {
	for _, path := range []string{
		"/sys/bus/event_source/devices/kprobe/type",
		"/sys/kernel/tracing/kprobe_events",
		"/sys/kernel/debug/tracing/kprobe_events",
	} {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
	}
	return errors.New("kernel has no kprobes (CONFIG_KPROBES, CONFIG_KPROBE_EVENTS)")
}

// probeSymbol is the first kernel function that syncd hooks.
const probeSymbol = "htab_map_update_elem"

func tryKprobe() error {
	return tryAttach("kprobe", ebpf.ProgramSpec{Type: ebpf.Kprobe}, func(p *ebpf.Program) (link.Link, error) {
		return link.Kprobe(probeSymbol, p, nil)
	})
}

func tryFexit() error {
	spec := ebpf.ProgramSpec{Type: ebpf.Tracing, AttachType: ebpf.AttachTraceFExit, AttachTo: probeSymbol}
	return tryAttach("fexit", spec, func(p *ebpf.Program) (link.Link, error) {
		return link.AttachTracing(link.TracingOptions{Program: p})
	})
}

func tryAttach(kind string, spec ebpf.ProgramSpec, attach func(*ebpf.Program) (link.Link, error)) error {
	spec.License = "GPL"
	spec.Instructions = asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}
	program, err := ebpf.NewProgram(&spec)
	if err != nil {
		return fmt.Errorf("kernel does not load %s programs: %w", kind, err)
	}
	defer program.Close() //nolint:errcheck // nothing was written
	l, err := attach(program)
	if err != nil {
		return fmt.Errorf("kernel does not attach %s programs: %w", kind, err)
	}
	return l.Close()
}
