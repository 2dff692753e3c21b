package drill

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// cpuRole selects the processors on which a program runs. The kernel processes a packet on a veth
// on the processor of its sender, for the programs of both load balancers.
//
// In the drill two load balancers share one kernel. Before kernel 6.12 a packet can interrupt the
// standby's syncd in the middle of a write, or a collector in the middle of a bpf(2) call. Then the
// active load balancer's kprobe misses the packet's own write. In a real pair the standby is
// another machine. Therefore packets have separate processors here.
type cpuRole int

const (
	traffic cpuRole = iota // clients and backends: all processors except the last
	control                // load balancers' user space and syncd: the last processor
)

// startOn starts a program on the processors of this role. The caller must have locked the thread.
func (w cpuRole) startOn(cmd *exec.Cmd) error { return w.withAffinity(cmd.Start) }

// run calls fn on the processors of this role.
func (w cpuRole) run(fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return w.withAffinity(fn)
}

// withAffinity calls fn on the processors of this role. The caller must have locked the thread.
func (w cpuRole) withAffinity(fn func() error) error {
	var before, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("get CPU affinity: %w", err)
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
