package kmap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"mapsync/bpf"
)

// List describes the maps on this host, in the order of their IDs, those with Unsupported included. It includes their
// pins and, if a program can read them, their number of entries. omitted is the number of maps that it leaves out:
// buffers of events, arrays of programs, the arrays of syncd, and those that the compiler makes for variables.
func List(ctx context.Context) (list []Info, omitted int, err error) {
	pinned, err := listPins()
	if err != nil && !errors.Is(err, os.ErrPermission) {
		return nil, 0, fmt.Errorf("list maps: %w", err)
	}
	err = eachMap(ctx, func(m *ebpf.Map, raw *mapInfo) error {
		if !listed(m.Type(), raw.nameString()) {
			omitted++
			return nil
		}
		info, err := Describe(m)
		if err != nil {
			return err
		}
		info.Pins = pinned[raw.id]
		if slices.Contains(replicable, info.Type) {
			info.Entries = CountEntries(ctx, m, &info)
		}
		list = append(list, info)
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("list maps: %w", err)
	}
	return list, omitted, nil
}

// listed reports whether List includes a map.
func listed(t ebpf.MapType, name string) bool {
	switch t {
	case ebpf.PerfEventArray, ebpf.RingBuf, ebpf.UserRingbuf, ebpf.ProgramArray, ebpf.StructOpsMap: // no state of a load balancer
		return false
	case ebpf.Array, ebpf.PerCPUArray:
		// Only the names of variables' sections have a dot, such as "lb.bss".
		return !strings.HasPrefix(name, bpf.MapPrefix) && !strings.Contains(name, ".")
	}
	return true
}
