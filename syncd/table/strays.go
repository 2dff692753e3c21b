package table

// strays remembers the latest deletes of keys that the table did not know. When
// two CPUs create and delete a key at the same moment, the delete's event may
// come first. To keep a tombstone for it would let anyone who can cause deletes
// of absent keys fill the table; so this is a small cache, made at the first
// such delete. Where it forgets too early, the scan finds the difference.
type strays []stray

type stray struct {
	time int64
	hash uint32
	cpu  uint16
}

const strayBits = 9

// note remembers since when a key is gone, from an event of a CPU. Of two keys
// with one place the later one stays.
func (x *strays) note(hash uint32, at int64, cpu uint16) {
	if *x == nil {
		*x = make(strays, 1<<strayBits)
	}
	if e := &(*x)[hash>>(32-strayBits)]; at >= e.time {
		*e = stray{at, hash, cpu}
	}
}

// match reports whether a key that now appears was deleted at about the same
// moment on another CPU, or since it was read.
func (x strays) match(hash uint32, c *Change) bool {
	if x == nil {
		return false
	}
	e := &x[hash>>(32-strayBits)]
	other := e.cpu != c.CPU || c.Context == ContextReread
	return e.hash == hash && other && c.Time-e.time <= sameMoment
}

func (x strays) bytes() uint64 { return uint64(cap(x)) * 16 }
