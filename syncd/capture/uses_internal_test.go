package capture

import (
	"crypto/rand"
	"math"
	"testing"
	"time"
	"unsafe"

	"mapsync/bpf"
)

// newUseArray returns an array in ordinary memory at the time begin.
func newUseArray(begin time.Time) *useArray {
	words := make([]uint32, (1+useBlocks)*useWords)
	memory := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 4*len(words))
	return &useArray{memory: memory, present: 1, advanced: begin}
}

// note notes a use as note_use in bpf/uses.h does.
func (u *useArray) note(secret uint32, key []byte) {
	h := useHash(secret, key)
	block := 1 + uint32(h>>(64-useBits))
	*u.word(block, uint32(h)%useWords) = u.present
	*u.word(block, uint32(h>>4)%useWords) = u.present
}

// TestUseArray: the time without a use is never longer than it was. It counts only while syncd advances it, so that a pause
// of the machine or of syncd counts as 2 s.
func TestUseArray(t *testing.T) {
	begin := time.Now()
	a := newUseArray(begin)
	u := &Uses{array: a, secret: 7, began: a.advance(begin) + 1}
	used, other := []byte("used"), []byte("other")
	check := func(when string, key []byte, want time.Duration, wantUsed bool) {
		t.Helper()
		if idle, used := u.Idle(key); idle != want || used != wantUsed {
			t.Errorf("%s: got %s without a use, used %t, want %s, %t", when, idle, used, want, wantUsed)
		}
	}
	check("at the begin", other, 0, false)
	now := begin
	for range 100 { // with a remainder in each step
		now = now.Add(150 * time.Millisecond)
		a.advance(now)
	}
	check("after 15 s", other, 15*time.Second-useTick-maxUseStep, false)
	a.note(u.secret, used)
	check("at a use", used, 0, true)
	now = now.Add(time.Hour) // a pause
	a.advance(now)
	check("after a pause", used, 0, true)
	check("after a pause", other, 15*time.Second-useTick, false)
	for range 10 {
		now = now.Add(time.Second)
		a.advance(now)
	}
	check("10 s later", used, 10*time.Second, true)
	a.advance(now.Add(-time.Hour)) // a clock that goes back, which time.Time prevents
	check("a step back", used, 10*time.Second, true)
	a.memory = nil // closed
	check("after Close", other, 0, true)
}

// TestUnusedKeysSeemUsedRarely: the share of unused keys that keys in use hide is the one that docs/capture.md states.
func TestUnusedKeysSeemUsedRarely(t *testing.T) {
	const unused = 20_000
	a := newUseArray(time.Now())
	key := make([]byte, 40)
	var inUse int
	for _, tt := range []struct {
		keys int
		most float64
	}{{100_000, 0.03}, {260_000, 0.08}, {1_000_000, 0.42}} {
		for ; inUse < tt.keys; inUse++ {
			_, _ = rand.Read(key)
			a.note(7, key)
		}
		seem := 0
		for range unused {
			_, _ = rand.Read(key)
			if last, _ := a.last(7, key); last > 0 {
				seem++
			}
		}
		got := float64(seem) / unused
		t.Logf("%d keys in use: %.1f %% of the others seem used", tt.keys, 100*got)
		if got > tt.most || got == 0 {
			t.Errorf("share of unused keys that seem used, with %d in use: got %.3f, want at most %.3f", tt.keys, got, tt.most)
		}
	}
}

// TestUseArraySize: the hooks use the array as it is here.
func TestUseArraySize(t *testing.T) {
	spec, err := bpf.LoadCapture()
	if err != nil {
		t.Fatal(err)
	}
	if m := spec.Maps["uses"]; m.MaxEntries != 1+useBlocks || m.ValueSize != 4*useWords {
		t.Errorf("array of uses: got %d blocks of %d bytes, want %d of %d", m.MaxEntries, m.ValueSize, 1+useBlocks, 4*useWords)
	}
	if most := time.Duration(math.MaxUint32) * useTick; most < 10*365*24*time.Hour {
		t.Errorf("time of the array: got %s, want years", most)
	}
}
