package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// otherLoad measures the processor use of other processes. Figures are unreliable if other
// processes were busy.
type otherLoad struct {
	began time.Time
	busy  time.Duration // of all processors, without idle and I/O wait time
	own   time.Duration // of this process and its children
}

func beginLoad() (otherLoad, error) {
	busy, err := busyTime()
	return otherLoad{time.Now(), busy, ownTime()}, err
}

// percent returns the share of all processors' time that other processes used since the start.
func (l otherLoad) percent() (float64, error) {
	busy, err := busyTime()
	if err != nil {
		return 0, err
	}
	others := busy - l.busy - (ownTime() - l.own)
	all := time.Since(l.began) * time.Duration(runtime.NumCPU())
	return max(0, 100*float64(others)/float64(all)), nil
}

// ownTime returns the processor time of this process and of its children that have ended.
func ownTime() time.Duration {
	return cpuTime(unix.RUSAGE_SELF) + cpuTime(unix.RUSAGE_CHILDREN)
}

// busyTime reads the busy time of all processors since boot from /proc/stat. It includes user,
// nice, system, interrupt and steal time. The resolution is 1/100 s.
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
