package table

// maxRereads bounds how many keys that the table does not know may wait to be
// read. What is beyond is counted, and left to the scan.
const maxRereads = 1 << 14

// rereads holds keys that are to be read and that the table has no record of, one
// after the other. Known keys have a mark in their record instead.
type rereads struct {
	keys []byte
	head int // bytes taken
}

func (r *rereads) len(size int) int { return (len(r.keys) - r.head) / size }

func (r *rereads) push(key []byte) {
	if r.head > len(r.keys)/2 {
		r.keys, r.head = r.keys[:copy(r.keys, r.keys[r.head:])], 0
	}
	r.keys = append(r.keys, key...)
}

// take copies keys into buf and returns their number.
func (r *rereads) take(buf []byte, size int) int {
	n := min(len(buf)/size, r.len(size))
	copy(buf, r.keys[r.head:][:n*size])
	r.head += n * size
	return n
}

func (r *rereads) bytes() uint64 { return uint64(cap(r.keys)) }

// Reread asks for a key to be read from the kernel map: an event told that it
// changed, but not to what, or a read of it failed. TakeRechecks hands it out.
func (tx *Tx) Reread(key []byte) {
	t := tx.t
	if len(key) != t.opt.KeySize {
		t.stats.Refused++
		return
	}
	if _, s := t.open(key); s != 0 {
		t.recheck(s)
		t.refreeze()
		return
	}
	t.rereadUnknown(key)
}

func (t *Table) rereadUnknown(key []byte) {
	if t.rereads.len(t.opt.KeySize) >= maxRereads {
		t.stats.RereadsDropped++
		return
	}
	t.rereads.push(key)
	t.tx.changed = true
}
