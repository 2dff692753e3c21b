package drill

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// work tells on which processors a program runs. A packet on a veth is served on
// the processor of its sender, by both load balancers' programs alike.
//
// Here two load balancers share one kernel. Before kernel 6.12 a packet that
// interrupts the standby's syncd in the middle of a write, or a collector in the
// middle of a bpf(2) call, hides its own write from the active one's kprobe. On a real
// pair the standby is another machine, so packets get processors of their own.
type work int

const (
	traffic work = iota // clients and backends: all processors but the last
	control             // load balancers' user space and syncd: the last
)

// startOn starts a program on its processors. The thread must be locked.
func (w work) startOn(cmd *exec.Cmd) error { return w.on(cmd.Start) }

// do calls fn on the processors of that work.
func (w work) do(fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return w.on(fn)
}

// on calls fn on the processors of that work. The thread must be locked.
func (w work) on(fn func() error) error {
	var before, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("ask for processors: %w", err)
	}
	last := -1
	for cpu := range 1024 {
		if before.IsSet(cpu) {
			last = cpu
			set.Set(cpu)
		}
	}
	if before.Count() < 2 {
		return fn()
	}
	if w == control {
		set.Zero()
		set.Set(last)
	} else {
		set.Clear(last)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("choose processors: %w", err)
	}
	return errors.Join(fn(), unix.SchedSetaffinity(0, &before))
}
