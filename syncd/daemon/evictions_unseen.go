package daemon

import (
	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

// evictionsUnseen reports whether syncd cannot distinguish the evictions of an LRU map from
// deletes. No hook detects these evictions, and a scan only finds that the entries are absent.
func (d *Daemon) evictionsUnseen(info *kmap.Info) bool {
	return isLRU(info) && !capture.Covers(d.capture.Attached(), d.capture.Missing(), info.Type).Evictions
}

// isLRU reports whether the kernel evicts entries of a map.
func isLRU(info *kmap.Info) bool {
	return info.Type == ebpf.LRUHash || info.Type == ebpf.LRUCPUHash
}
