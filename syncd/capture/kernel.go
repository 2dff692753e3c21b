package capture

import "github.com/cilium/ebpf/features"

// kernelAtLeast returns true if the release of the running kernel is major.minor or later. It
// returns false if the release cannot be read.
func kernelAtLeast(major, minor uint32) bool {
	code, err := features.LinuxVersionCode()
	if err != nil {
		return false
	}
	have := [2]uint32{code >> 16, code >> 8 & 0xff}
	return have[0] > major || have[0] == major && have[1] >= minor
}
