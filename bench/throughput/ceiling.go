package main

import (
	"fmt"
	"runtime"

	"github.com/cilium/ebpf"
)

// batchEntries is the number of entries in the compared blocks: a bpf(2) batch and a net/rpc call.
const batchEntries = 8192

// batchUpdate writes all entries with plain bpf(2) batches from one thread. Its cost is that of the
// kernel's own hash insert, which is the ceiling for every way into a kernel map.
func batchUpdate(m *ebpf.Map, e *entries) error {
	for at := 0; at < len(e.keys); at += batchEntries {
		end := min(at+batchEntries, len(e.keys))
		if _, err := m.BatchUpdate(e.keys[at:end], e.values[at:end], nil); err != nil {
			return fmt.Errorf("update a batch: %w", err)
		}
	}
	return nil
}

// ceiling writes all entries into an empty map, and then a second time.
func ceiling(e *entries) (fresh, again Sample, err error) {
	m, err := newMap("ceiling", len(e.keys))
	if err != nil {
		return fresh, again, err
	}
	defer m.Close()
	runtime.LockOSThread() // one thread, one core
	defer runtime.UnlockOSThread()
	n := len(e.keys)
	if fresh, err = measure(n, func() error { return batchUpdate(m, e) }); err != nil {
		return fresh, again, err
	}
	again, err = measure(n, func() error { return batchUpdate(m, e) })
	return fresh, again, err
}
