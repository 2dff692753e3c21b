package bpf

import (
	"runtime/debug"
	"sync"
	"time"

	"github.com/cilium/ebpf/btf"
)

// typesLifetime is the time for which the types of the kernel stay in memory after a use. They need
// 10 to 20 MiB, and many milliseconds to read.
const typesLifetime = 2 * time.Second

var types struct {
	sync.Mutex
	cache *btf.Cache // nil if the types are not in memory
	drop  *time.Timer
}

// KernelTypes returns the types of the kernel, which loads of programs in short succession share. After the last of
// them, the memory returns to the kernel. The caller does not keep the result, because it would keep the memory.
func KernelTypes() *btf.Cache {
	types.Lock()
	defer types.Unlock()
	if types.cache != nil {
		types.drop.Reset(typesLifetime)
		return types.cache
	}
	cache := btf.NewCache()
	types.cache = cache
	types.drop = time.AfterFunc(typesLifetime, func() {
		types.Lock()
		if types.cache == cache { // not if a use came while the timer ended, and another cache is there now
			types.cache = nil
		}
		types.Unlock()
		debug.FreeOSMemory() // an idle daemon allocates too little for a collection soon
	})
	return cache
}
