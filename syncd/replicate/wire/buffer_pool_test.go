package wire

import (
	"math/rand/v2"
	"testing"
)

// TestBufferPoolSizes checks the lengths of buffers of all tiers and above.
func TestBufferPoolSizes(t *testing.T) {
	for range 1000 {
		n := rand.N(200 << 10)
		b := buffers.Get(n)
		if len(*b) != n {
			t.Fatalf("length of a buffer: got %d, want %d", len(*b), n)
		}
		buffers.Put(b)
	}
}

// TestBuffersAreReused checks that buffers of a tier are reused and that larger ones are not.
func TestBuffersAreReused(t *testing.T) {
	var p bufferPool
	for i, size := range bufferSizes {
		for _, length := range []int{size, size - 1, 1} {
			if i > 0 && length == 1 {
				continue
			}
			b := p.Get(length)
			if len(*b) != length || cap(*b) != size {
				t.Errorf("buffer of %d bytes: got length %d, capacity %d, want %d and %d", length, len(*b), cap(*b), length, size)
			}
			p.Put(b)
		}
	}
	largest := bufferSizes[len(bufferSizes)-1]
	if b := p.Get(largest + 1); len(*b) != largest+1 {
		t.Errorf("buffer above all tiers: got %d bytes, want %d", len(*b), largest+1)
	}
}
