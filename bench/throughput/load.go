package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// otherLoad tells how much of the machine something else had: figures taken while others
// were busy say little.
type otherLoad struct {
	began time.Time
	busy  time.Duration // of all processors, idle and waiting aside
	own   time.Duration // this process's, and its children's
}

func beginLoad() (otherLoad, error) {
	busy, err := busyTime()
	return otherLoad{time.Now(), busy, ownTime()}, err
}

// percent returns the part of all processors' time that others had since the start.
func (l otherLoad) percent() (float64, error) {
	busy, err := busyTime()
	if err != nil {
		return 0, err
	}
	others := busy - l.busy - (ownTime() - l.own)
	all := time.Since(l.began) * time.Duration(runtime.NumCPU())
	return max(0, 100*float64(others)/float64(all)), nil
}

// ownTime is the processor time of this process and of those that it has started and that
// have ended.
func ownTime() time.Duration {
	return cpuTime(unix.RUSAGE_SELF) + cpuTime(unix.RUSAGE_CHILDREN)
}

// busyTime reads from /proc/stat how long all processors were busy since boot:
// user, nice, system, interrupts and what the hypervisor took, in 1/100 s.
func busyTime() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read the load of the machine: %w", err)
	}
	var user, nice, system, idle, wait, irq, soft, steal int64
	first, _, _ := bytes.Cut(stat, []byte("\n"))
	if _, err := fmt.Sscanf(string(first), "cpu %d %d %d %d %d %d %d %d",
		&user, &nice, &system, &idle, &wait, &irq, &soft, &steal); err != nil {
		return 0, fmt.Errorf("read the load of the machine: %w", err)
	}
	return time.Duration(user+nice+system+irq+soft+steal) * 10 * time.Millisecond, nil
}
