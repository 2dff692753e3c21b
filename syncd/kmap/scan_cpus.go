package kmap

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// CheckScanCPUs returns an error if this process may use none of the CPUs, or may not select CPUs.
func CheckScanCPUs(cpus *unix.CPUSet) error {
	release, err := pinToCPUs(cpus)
	switch {
	case errors.Is(err, unix.EINVAL):
		return errors.New("this process may use none of these CPUs: see nproc, AllowedCPUs of the unit and the cpuset of the container")
	case err != nil:
		return fmt.Errorf("select CPUs (allow sched_setaffinity in SystemCallFilter of the unit): %w", err)
	}
	release()
	return nil
}

// OnScanCPUs calls fn on a thread that runs on the CPUs. Nil, or CPUs that are offline: where it may run now.
func OnScanCPUs(cpus *unix.CPUSet, fn func() error) error {
	release, _ := pinToCPUs(cpus) // CheckScanCPUs returns the error at the start
	defer release()
	return fn()
}

// pinToCPUs moves the calling goroutine's thread to the CPUs until release is called. Nil: it does nothing.
// With an error, for example because the CPUs are offline, the thread stays where it may run now.
func pinToCPUs(cpus *unix.CPUSet) (release func(), err error) {
	if cpus == nil {
		return func() {}, nil
	}
	runtime.LockOSThread()
	var before unix.CPUSet
	if err = unix.SchedGetaffinity(0, &before); err == nil {
		err = unix.SchedSetaffinity(0, cpus)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return func() {}, err
	}
	return func() {
		// A thread that is not restored stays locked, and ends with its goroutine.
		if unix.SchedSetaffinity(0, &before) == nil {
			runtime.UnlockOSThread()
		}
	}, nil
}
