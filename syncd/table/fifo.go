package table

import "iter"

// fifo is a queue in chunks. It keeps one spare chunk, so that a queue of constant length allocates no
// memory. The lock of the table protects it.
type fifo[T any] struct {
	// chunks holds the elements in order, exactly as many chunks as head+n elements need.
	chunks []*[fifoChunk]T
	// spare is an empty chunk for the next push, or nil.
	spare *[fifoChunk]T
	// head is the index of the oldest element in the first chunk, below fifoChunk.
	head int
	// n is the number of elements.
	n int
}

// fifoChunk is the number of elements of a chunk.
const fifoChunk = 256

// len returns the number of elements.
func (q *fifo[T]) len() int { return q.n }

// push appends an element.
func (q *fifo[T]) push(v T) {
	i := q.head + q.n
	if i/fifoChunk == len(q.chunks) {
		if q.spare == nil {
			q.spare = new([fifoChunk]T)
		}
		q.chunks = append(q.chunks, q.spare)
		q.spare = nil
	}
	q.chunks[i/fifoChunk][i%fifoChunk] = v
	q.n++
}

// peek returns the oldest element. The queue must not be empty.
func (q *fifo[T]) peek() T { return q.chunks[0][q.head] }

// pop removes and returns the oldest element. The queue must not be empty.
func (q *fifo[T]) pop() T {
	v := q.chunks[0][q.head]
	q.head++
	q.n--
	if q.head == fifoChunk {
		q.head = 0
		q.spare = q.chunks[0]
		copy(q.chunks, q.chunks[1:])
		q.chunks[len(q.chunks)-1] = nil
		q.chunks = q.chunks[:len(q.chunks)-1]
	}
	return v
}

// all returns all elements, oldest first. The queue must not change meanwhile.
func (q *fifo[T]) all() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := q.head; i < q.head+q.n; i++ {
			if !yield(&q.chunks[i/fifoChunk][i%fifoChunk]) {
				return
			}
		}
	}
}

// bytes returns the memory of the queue in bytes, for elements of the given size.
func (q *fifo[T]) bytes(size int) uint64 {
	n := len(q.chunks)
	if q.spare != nil {
		n++
	}
	return uint64(n*fifoChunk*size) + uint64(cap(q.chunks))*8
}
