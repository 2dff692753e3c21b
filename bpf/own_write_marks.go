package bpf

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// NewOwnWriteMarks creates the per-CPU map in which syncd's writing programs mark their writes. The
// hooks read it. A syncd process creates one such map and shares it between all its programs. The
// caller owns the map and closes it.
func NewOwnWriteMarks() (*ebpf.Map, error) {
	spec, err := LoadCapture()
	if err != nil {
		return nil, fmt.Errorf("read BPF object: %w", err)
	}
	NameMaps(spec)
	m, err := ebpf.NewMap(spec.Maps[CaptureMapOwnWriteMarks])
	if err != nil {
		return nil, fmt.Errorf("create the map of own writes (needs CAP_BPF): %w", err)
	}
	return m, nil
}
