package counters

import "container/heap"

// candidates has the label contents without a series that increased most since the last collection, by the space-saving
// algorithm (Metwally, Agrawal, El Abbadi 2005): a new one replaces the one with the lowest count, and inherits its
// count as a possible error.
type candidates struct {
	max   int
	byRaw map[string]*candidate
	heap  candidateHeap
}

type candidate struct {
	raw string // layout.raw of key
	key []byte // the first key with these labels
	// count is at least the increase of the first counter since the last collection, and exceeds it by at most error.
	count, error uint64
	index        int // in the heap
}

// least returns the lowest possible increase.
func (c *candidate) least() uint64 { return c.count - c.error }

func newCandidates(limit int) candidates {
	return candidates{max: limit, byRaw: make(map[string]*candidate)}
}

// add adds an increase of the first counter of a key.
func (c *candidates) add(raw, key []byte, increase uint64) {
	e := c.byRaw[string(raw)]
	switch {
	case e != nil:
	case len(c.heap) < c.max:
		e = &candidate{index: len(c.heap)}
		c.heap = append(c.heap, e)
		c.set(e, raw, key)
	default:
		e = c.heap[0]
		delete(c.byRaw, e.raw)
		e.error = e.count
		c.set(e, raw, key)
	}
	e.count += increase
	heap.Fix(&c.heap, e.index)
}

func (c *candidates) set(e *candidate, raw, key []byte) {
	e.raw, e.key = string(raw), append(e.key[:0], key...)
	c.byRaw[e.raw] = e
}

func (c *candidates) reset() {
	clear(c.byRaw)
	clear(c.heap)
	c.heap = c.heap[:0]
}

// candidateHeap has the candidate with the lowest count first.
type candidateHeap []*candidate

func (h candidateHeap) Len() int           { return len(h) }
func (h candidateHeap) Less(i, j int) bool { return h[i].count < h[j].count }

func (h candidateHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push and Pop are not used: candidates only change.
func (h *candidateHeap) Push(any) {}
func (h *candidateHeap) Pop() any { return nil }
