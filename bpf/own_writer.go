package bpf

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// NewOwnWriter creates the per-CPU map in which the daemon's writing programs
// mark their writes and the hooks look: one for a daemon, shared by all its
// programs. The caller owns it.
func NewOwnWriter() (*ebpf.Map, error) {
	spec, err := LoadCapture()
	if err != nil {
		return nil, fmt.Errorf("read BPF object: %w", err)
	}
	m, err := ebpf.NewMap(spec.Maps[CaptureMapOwnWriter])
	if err != nil {
		return nil, fmt.Errorf("create the map of own writes (needs CAP_BPF): %w", err)
	}
	return m, nil
}
