package table

// maxUnknownBytes limits the size of the queued keys without a record. Further requests are counted and dropped; the
// scan finds these keys. A call of bpf(2) with events of the largest size has 1 MiB of keys.
const maxUnknownBytes = 4 << 20

// keptBytes is the memory that an empty keyQueue keeps at most.
const keptBytes = 64 << 10

// keyQueue is a queue of keys without a record that wait for a reread. Keys with a record have
// flagReread instead. The lock of the table protects it.
type keyQueue struct {
	// keys has the keys one after the other. The first head bytes are not in use.
	keys []byte
	// head is the number of bytes that take has returned, a multiple of the key size.
	head int
}

// waiting returns the size of the queued keys in bytes.
func (r *keyQueue) waiting() int { return len(r.keys) - r.head }

// push appends a copy of a key.
func (r *keyQueue) push(key []byte) {
	if r.head > len(r.keys)/2 {
		r.keys, r.head = r.keys[:copy(r.keys, r.keys[r.head:])], 0
	}
	r.keys = append(r.keys, key...)
}

// take moves keys into buf and returns their number. size is the size of a key in bytes.
func (r *keyQueue) take(buf []byte, size int) int {
	n := min(len(buf), r.waiting()) / size
	copy(buf, r.keys[r.head:][:n*size])
	r.head += n * size
	if r.waiting() == 0 && cap(r.keys) > keptBytes {
		*r = keyQueue{}
	}
	return n
}

// bytes returns the memory of the queue in bytes.
func (r *keyQueue) bytes() uint64 { return uint64(cap(r.keys)) }
