package daemon

import (
	"slices"

	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

// evictionsUnseen reports whether syncd cannot distinguish the evictions of an LRU map from
// deletes. No hook detects these evictions, and a scan only finds that the entries are absent.
func (d *Daemon) evictionsUnseen(info *kmap.Info) bool {
	return isLRU(info) && (!d.capture.HooksMaps() || slices.Contains(d.capture.Missing(), "htab_lru_map_delete_node"))
}

// isLRU reports whether the kernel evicts entries of a map.
func isLRU(info *kmap.Info) bool {
	return info.Type == ebpf.LRUHash || info.Type == ebpf.LRUCPUHash
}
