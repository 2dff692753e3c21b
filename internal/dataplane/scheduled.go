package dataplane

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// HasTimers returns ebpf.ErrNotSupported, wrapped, if BPF programs have no timers: before 5.15, and in newer kernels
// on processors without cmpxchg16b, where the kernel cannot allocate one in a program (kmalloc_nolock).
func HasTimers() error {
	if err := features.HaveProgramHelper(ebpf.SocketFilter, asm.FnTimerInit); err != nil {
		return err
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("create a map for a timer: %w", err)
	}
	defer m.Close()
	p, err := Open(m, Options{Capacity: 1})
	if err != nil {
		return err
	}
	return errors.Join(p.RunByTimer(), p.Close())
}

// timerDeadline is the time within which a timer that is due must have made its run.
const timerDeadline = 10 * time.Second

// RunByTimer makes a timer make one run, in a soft interrupt of the calling thread's CPU.
func (p *Program) RunByTimer() error {
	return p.scheduled("start_timer", func(c *ebpf.Collection) error {
		runs := p.Runs()
		code, err := c.Programs["start_timer"].Run(&ebpf.RunOptions{Data: testPacket[:]})
		switch {
		case err != nil:
			return fmt.Errorf("run the program that starts the timer: %w", err)
		case int32(code) == -int32(unix.ENOMEM):
			return fmt.Errorf("start timer: %w: %w", unix.ENOMEM, ebpf.ErrNotSupported)
		case code != 0:
			return fmt.Errorf("start timer: %w", unix.Errno(-int32(code)))
		}
		for began := time.Now(); p.Runs() == runs; time.Sleep(time.Millisecond) {
			if time.Since(began) > timerDeadline {
				return fmt.Errorf("timer: no run within %s", timerDeadline)
			}
		}
		return nil
	})
}

// RunByIterator makes an iterator make one run, in process context.
func (p *Program) RunByIterator() error {
	return p.scheduled("by_iterator", func(c *ebpf.Collection) error {
		// This array has one element.
		it, err := link.AttachIter(link.IterOptions{Program: c.Programs["by_iterator"], Map: p.objects.Progress})
		if err != nil {
			return fmt.Errorf("attach iterator: %w", err)
		}
		defer it.Close() //nolint:errcheck // only read
		r, err := it.Open()
		if err != nil {
			return fmt.Errorf("open iterator: %w", err)
		}
		_, err = io.Copy(io.Discard, r)
		return errors.Join(err, r.Close())
	})
}

// Getppid is the kernel's function for getppid(2).
var Getppid = map[string]string{"amd64": "__x64_sys_getppid", "arm64": "__arm64_sys_getppid"}[runtime.GOARCH]

// RunByKprobe makes a kprobe on getppid(2) make one run, in process context. It calls loaded, unless nil, while the
// program exists.
func (p *Program) RunByKprobe(loaded func()) error {
	return p.scheduled("by_kprobe", func(c *ebpf.Collection) error {
		l, err := link.Kprobe(Getppid, c.Programs["by_kprobe"], nil)
		if err != nil {
			return fmt.Errorf("attach kprobe: %w", err)
		}
		if loaded != nil {
			loaded()
		}
		unix.Getppid()
		return l.Close()
	})
}

// scheduled loads one program of scheduled.bpf.c with the list and the target of p, and calls run.
func (p *Program) scheduled(program string, run func(*ebpf.Collection) error) error {
	spec, err := loadScheduled()
	if err != nil {
		return fmt.Errorf("read BPF object: %w", err)
	}
	for name := range spec.Programs {
		if name != program {
			delete(spec.Programs, name)
		}
	}
	if program != "start_timer" {
		delete(spec.Maps, scheduledMapTimers)
	}
	if err := p.configure(spec); err != nil {
		return err
	}
	maps := map[string]*ebpf.Map{
		dataplaneMapTarget: p.target, dataplaneMapWrites: p.objects.Writes, dataplaneMapProgress: p.objects.Progress,
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: maps})
	if err != nil {
		return fmt.Errorf("load %s: %w", program, err)
	}
	defer c.Close()
	return run(c)
}
