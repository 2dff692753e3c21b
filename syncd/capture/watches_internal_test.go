package capture

import (
	"testing"
	"unsafe"

	"mapsync/bpf"
)

// TestWatchesHoldAllMaps adds the maximum number of maps whose ids have regular distances, and removes and adds
// them again under other ids.
func TestWatchesHoldAllMaps(t *testing.T) {
	for bits := range 22 {
		w := &watches{memory: make([]byte, watchBuckets*unsafe.Sizeof(bpf.CaptureWatch{}))}
		id := func(i int) uint32 { return 5 + uint32(i)<<bits }
		for i := range 2 * MaxMaps {
			if i >= MaxMaps {
				w.remove(id(i - MaxMaps))
			}
			if !w.add(id(i), 8, 16) {
				t.Fatalf("ids with distance %d: got no bucket for map number %d, want one", 1<<bits, i)
			}
			if p := w.find(id(i)); p == nil || p.KeySize != 8 || p.ValueSize != 16 {
				t.Fatalf("ids with distance %d: find map number %d: got %+v, want its watch", 1<<bits, i, p)
			}
		}
	}
}
