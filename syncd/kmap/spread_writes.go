package kmap

import (
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Minimum and maximum number of entries that one CPU writes before the next one takes its turn. A turn is at most a
// sixteenth of the CPU's share, unless that is below the minimum.
const (
	minTurn = 16
	maxTurn = 512
)

// cpuTurns are the CPUs that write an LRU map with BPF_F_NO_COMMON_LRU (kernel/bpf/bpf_lru_list.c) in turn. Each CPU has
// an equal share of the entries of such a map, and an entry is in the share of the CPU that wrote it last. One CPU
// alone would evict entries from its full share while the others are empty. Only Apply uses it, under writeMu.
type cpuTurns struct {
	cpus    []unix.CPUSet // the CPUs that this process may use, one in each set
	next    int
	entries int // of one turn
}

// openCPUTurns returns nil for other maps.
func openCPUTurns(i *Info) (*cpuTurns, error) {
	if i.Flags&unix.BPF_F_NO_COMMON_LRU == 0 {
		return nil, nil
	}
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return nil, fmt.Errorf("read the CPUs of this process: %w", err)
	}
	possible, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count possible CPUs: %w", err)
	}
	t := &cpuTurns{entries: min(max(i.MaxEntries/possible/16, minTurn), maxTurn)}
	for cpu, left := 0, allowed.Count(); left > 0; cpu++ {
		if allowed.IsSet(cpu) {
			var one unix.CPUSet
			one.Set(cpu)
			t.cpus = append(t.cpus, one)
			left--
		}
	}
	if err := CheckScanCPUs(&t.cpus[0]); err != nil {
		return nil, fmt.Errorf("entries of peers take the share of one CPU of the map: %w", err)
	}
	return t, nil
}

// write writes the batch, and returns the number of failed entries.
func (k *Map) write(b *Batch) (failed int, err error) {
	if k.turns == nil {
		return k.writeRange(b, 0, b.n)
	}
	for at := 0; at < b.n && err == nil; at += k.turns.entries {
		release, _ := pinToCPUs(&k.turns.cpus[k.turns.next]) // an offline CPU leaves its turn to any other
		k.turns.next = (k.turns.next + 1) % len(k.turns.cpus)
		var bad int
		bad, err = k.writeRange(b, at, min(at+k.turns.entries, b.n))
		release()
		failed += bad
	}
	return failed, err
}

// writeRange writes the entries from first to end, without end.
func (k *Map) writeRange(b *Batch, first, end int) (failed int, err error) {
	if k.writer != nil {
		return k.writer.run(first, end)
	}
	return k.syscallWriter.run(b, first, end)
}
