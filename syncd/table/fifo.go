package table

// fifo is a queue in chunks. It keeps one spare chunk, so that a queue that
// only passes things through allocates nothing.
type fifo[T any] struct {
	chunks []*[fifoChunk]T
	spare  *[fifoChunk]T
	head   int // in the first chunk
	n      int
}

const fifoChunk = 1024

func (q *fifo[T]) len() int { return q.n }

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

func (q *fifo[T]) peek() T { return q.chunks[0][q.head] }

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

// bytes returns what the queue occupies when an element has the given size.
func (q *fifo[T]) bytes(size int) uint64 {
	n := len(q.chunks)
	if q.spare != nil {
		n++
	}
	return uint64(n*fifoChunk*size) + uint64(cap(q.chunks))*8
}
