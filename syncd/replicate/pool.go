package replicate

import "sync"

// bufferSizes are the tiers of the pool: a header, a trickle, a quarter batch
// and a full one.
var bufferSizes = [...]int{2 << 10, 8 << 10, 32 << 10, maxBatchBytes + 16<<10}

// buffers holds the buffers of encoded batches, from their encoding until gRPC
// has written them, and those of received batches that came in pieces.
var buffers bufferPool

// bufferPool is a mem.BufferPool. gRPC's own pools clear each buffer that they
// hand out; these are overwritten as far as they are read.
type bufferPool struct {
	tiers [len(bufferSizes)]sync.Pool
}

// Get returns a buffer of the given length and any content.
func (p *bufferPool) Get(length int) *[]byte {
	for i, size := range bufferSizes {
		if length > size {
			continue
		}
		if b, ok := p.tiers[i].Get().(*[]byte); ok {
			*b = (*b)[:length]
			return b
		}
		b := make([]byte, length, size)
		return &b
	}
	b := make([]byte, length)
	return &b
}

// Put takes back a buffer that Get returned. One larger than all tiers is left
// to the garbage collector.
func (p *bufferPool) Put(b *[]byte) {
	for i, size := range bufferSizes {
		if cap(*b) == size {
			p.tiers[i].Put(b)
			return
		}
	}
}
