package capture

import (
	"math/rand/v2"
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

// TestWatchesShrink adds and removes many maps, each with another id. The hooks find all watched maps, and probe no bucket
// only because a map was there once.
func TestWatchesShrink(t *testing.T) {
	w := &watches{memory: make([]byte, watchBuckets*unsafe.Sizeof(bpf.CaptureWatch{}))}
	// found returns whether watch_of in bpf/event.h finds a map, and the buckets that it reads.
	found := func(id uint32) (bool, int) {
		for i := range watchProbes {
			p := w.probe(id, i)
			if p.Id == id {
				return true, i + 1
			}
			if p.ProbeNext == 0 {
				return false, i + 1
			}
		}
		return false, watchProbes
	}
	ids := rand.New(rand.NewPCG(1, 2))
	var watched []uint32
	for range 200_000 {
		if len(watched) == MaxMaps {
			i := ids.IntN(len(watched))
			w.remove(watched[i])
			if ok, _ := found(watched[i]); ok {
				t.Fatalf("map %d after its removal: got a watch, want none", watched[i])
			}
			watched[i], watched = watched[len(watched)-1], watched[:len(watched)-1]
		}
		if id := ids.Uint32(); id != 0 && w.find(id) == nil && w.add(id, 8, 16) {
			watched = append(watched, id)
		}
	}
	reads := 0
	for range 10_000 {
		_, n := found(ids.Uint32())
		reads += n
	}
	if reads > 20_000 {
		t.Errorf("buckets read for each of 10000 maps that are not watched: got %.1f, want at most 2", float64(reads)/10_000)
	}
	for _, id := range watched {
		if ok, _ := found(id); !ok {
			t.Fatalf("watched map %d: got no watch, want one", id)
		}
		w.remove(id)
	}
	for i, n := range w.beyond {
		p := w.probe(0, i)
		if n != 0 || p.ProbeNext != 0 || p.Id != 0 {
			t.Fatalf("bucket %d without maps: got %d maps beyond it and watch %+v, want none", i, n, *p)
		}
	}
}
