package main

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// realtimeVariable is set in the environment of a process that has real-time priority.
const realtimeVariable = "MAPSYNC_JITTER_REALTIME"

// useRealtime gives all threads of this process real-time priority, so that no other work interrupts a call: its time is then
// that for which it holds a CPU, as that of a timer is. New threads inherit the priority of the thread that executes the
// program again.
func useRealtime() error {
	if os.Getenv(realtimeVariable) != "" {
		return nil
	}
	// By default, the kernel stops real-time threads for 50 ms of each second without a pause. The other threads of the
	// machine need some time, too, should those not pause.
	for _, limit := range [][2]string{{"sched_rt_period_us", "10000000"}, {"sched_rt_runtime_us", "9900000"}} {
		if err := os.WriteFile("/proc/sys/kernel/"+limit[0], []byte(limit[1]), 0o644); err != nil {
			return fmt.Errorf("raise the limit of real-time threads: %w", err)
		}
	}
	runtime.LockOSThread()
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
		return fmt.Errorf("set real-time priority: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := unix.Exec(self, os.Args, append(os.Environ(), realtimeVariable+"=1")); err != nil {
		return fmt.Errorf("start again with real-time priority: %w", err)
	}
	return nil
}
