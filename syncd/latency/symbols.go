package latency

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// functionNames returns the names of the kernel's functions by their addresses, or none without permission.
func functionNames() map[uint64]string {
	names := make(map[uint64]string)
	file, err := os.Open("/proc/kallsyms")
	if err != nil {
		return names
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		f := strings.Fields(lines.Text()) // address, type, name, module
		if len(f) < 3 || !strings.ContainsAny(f[1], "tTwW") {
			continue
		}
		if address, err := strconv.ParseUint(f[0], 16, 64); err == nil && address != 0 {
			names[address] = f[2]
		}
	}
	return names
}
