package offload

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic returns a time by the clock of bpf_ktime_get_ns. syncd converts such fields to the clock of the
// node that receives them. Times before the start of that clock are 0.
func monotonic(t time.Time) uint64 {
	return uint64(max(0, kernelClock()+time.Until(t)))
}

// wallClock is the inverse of monotonic.
func wallClock(ns uint64) time.Time {
	return time.Now().Add(time.Duration(ns) - kernelClock())
}

func kernelClock() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // every kernel supports this clock
	}
	return time.Duration(ts.Nano())
}
