package kmap

import (
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// An LRU map evicts entries before it is full. Each CPU takes free entries from the common list in lots (LOCAL_FREE_TARGET in
// kernel/bpf/bpf_lru_list.c), and a CPU that finds no whole lot there evicts others, while the lots of the other CPUs are unused.
// With BPF_F_NO_COMMON_LRU, each CPU has its own list and evicts 4 entries at a time.

const (
	// maxLot is LOCAL_FREE_TARGET. Newer kernels take smaller lots from small maps.
	maxLot = 128
	// ownListLot is PERCPU_FREE_TARGET.
	ownListLot = 4
	// burstShare is the part of the entries that stays free for new entries of the load balancer until syncd has displaced as
	// many of its peers, a few milliseconds later.
	burstShare = 16
	// probeEntries is the size of the map of probeLots, at which the two differ on a host with two CPUs or more.
	probeEntries = 256
)

// LRURoom returns the number of entries up to which syncd fills an LRU map: the kernel evicts none of them, if its CPUs use it
// evenly, nor if a sixteenth of the entries is added. It is at least half of the maximum number of entries, although the kernel may
// evict entries of a small map before. It returns 0 for other maps.
func (i *Info) LRURoom() (int, error) {
	if i.Type != ebpf.LRUHash && i.Type != ebpf.LRUCPUHash {
		return 0, nil
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return 0, fmt.Errorf("count possible CPUs: %w", err)
	}
	lot := ownListLot
	if i.Flags&unix.BPF_F_NO_COMMON_LRU == 0 {
		small, err := smallLots()
		if err != nil {
			return 0, err
		}
		if lot = maxLot; small {
			lot = min(max(i.MaxEntries/cpus/2, 1), maxLot)
		}
	}
	return max(i.MaxEntries-lot*cpus-i.MaxEntries/burstShare, i.MaxEntries/2), nil
}

// smallLots reports whether this kernel takes smaller lots from small maps.
var smallLots = sync.OnceValues(func() (bool, error) {
	n, err := probeLot()
	return n < maxLot, err
})

// probeLot fills an LRU map from one CPU, and returns the number of entries that the kernel evicts for the first one above its size.
func probeLot() (evicted int, err error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 4, ValueSize: 4, MaxEntries: probeEntries})
	if err != nil {
		return 0, fmt.Errorf("create an LRU map to measure its lots: %w", err)
	}
	defer m.Close()
	for key := range uint32(probeEntries + 1) {
		if err := m.Put(key, key); err != nil {
			return 0, fmt.Errorf("fill an LRU map to measure its lots: %w", err)
		}
	}
	present, value := 0, uint32(0)
	for key := range uint32(probeEntries + 1) {
		if m.Lookup(key, &value) == nil {
			present++
		}
	}
	return probeEntries + 1 - present, nil
}
