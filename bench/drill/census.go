package drill

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"mapsync/bench/lb"
	"mapsync/bench/lb/bpf"
)

// censusBatch is how many entries one system call of a census reads.
const censusBatch = 4096

// Census counts the entries of a connection-tracking map. Each session has two.
type Census struct {
	Entries   int `json:"entries"`
	Handshake int `json:"handshake"` // in a state before established: the creation was seen, what followed not
	Closing   int `json:"closing"`
}

// takeCensus reads a pinned map in batches. It is for the standby's map after
// the cut: before it, such calls could hide writes from hooks under test.
func takeCensus(pin string) (c Census, err error) {
	m, err := ebpf.LoadPinnedMap(pin, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return c, fmt.Errorf("open map for census: %w", err)
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	var (
		cursor ebpf.MapBatchCursor
		keys   = make([]bpf.LBCtKey, censusBatch)
		values = make([]bpf.LBCtValue, censusBatch)
	)
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return c, fmt.Errorf("read map for census: %w", err)
		}
		for i := range values[:n] {
			c.add(values[i].State)
		}
		if err != nil {
			return c, nil
		}
	}
}

func (c *Census) add(state uint8) {
	c.Entries++
	switch {
	case state < lb.StateEstablished:
		c.Handshake++
	case state > lb.StateEstablished:
		c.Closing++
	}
}
