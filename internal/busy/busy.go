// Package busy states how much longer work takes on this machine at present than on an idle one, for limits of tests and of tools.
package busy

import (
	"fmt"
	"os"
	"runtime"
	"time"
)

// most is the highest factor.
const most = 10

// Factor returns how many times longer a task takes than on an idle machine: the number of tasks that want to run for each CPU, now and
// in the last minute, from 1 to 10. A virtual machine of the tests does not see the load of its host, which also emulates it.
func Factor() float64 {
	least := 1.0
	if kernel := os.Getenv("MAPSYNC_KERNEL"); kernel != "" && kernel != "native" {
		least = 6
	}
	var load, five, fifteen, running float64
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscanf(string(text), "%g %g %g %g/", &load, &five, &fifteen, &running) // without a number: 0
	}
	return min(max(least, max(load, running)/float64(runtime.NumCPU())), most)
}

// Lengthened returns a limit multiplied by the factor.
func Lengthened(limit time.Duration) time.Duration {
	return time.Duration(float64(limit) * Factor())
}
