package wire

import "sync"

// bufferSizes are the sizes of the pooled buffers in bytes, ascending: for a header, a few deltas,
// a quarter of a batch, and a full batch.
var bufferSizes = [...]int{2 << 10, 8 << 10, 32 << 10, maxBatchBytes + 16<<10}

// buffers holds the buffers of encoded batches from their encoding until gRPC has written them, and
// those of received batches that arrived in several pieces. All streams of the process share it.
var buffers bufferPool

// bufferPool is a mem.BufferPool. The pools of gRPC clear each buffer that they return. These
// buffers are not cleared, because each caller overwrites the part that it reads. It is safe for
// concurrent use.
type bufferPool struct {
	// tiers holds free buffers. Every buffer in tiers[i] has a capacity of exactly bufferSizes[i].
	tiers [len(bufferSizes)]sync.Pool
}

// Get returns a buffer of the given length in bytes with undefined content. The caller owns it until
// Put. A length above the largest tier is allocated, and not pooled afterwards.
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

// Put takes back a buffer that Get returned. The garbage collector frees a buffer that is larger than
// all tiers. The caller must not use b afterwards.
func (p *bufferPool) Put(b *[]byte) {
	for i, size := range bufferSizes {
		if cap(*b) == size {
			p.tiers[i].Put(b)
			return
		}
	}
}
