package drill

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"mapsync/bench/lb"
	"mapsync/bench/lb/bpf"
)

// Census counts the entries of a connection-tracking map. Each session has two.
type Census struct {
	Entries   int `json:"entries"`
	Handshake int `json:"handshake"` // in a state before established: the creation was seen, what followed not
	Closing   int `json:"closing"`
}

// takeCensus reads a pinned map. It is for the standby's map after the cut: before
// it, reading in batches could hide writes from hooks under test.
func takeCensus(pin string, layout lb.Layout) (c Census, err error) {
	m, err := ebpf.LoadPinnedMap(pin, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return c, fmt.Errorf("open map for census: %w", err)
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	err = layout.ForEach(m, func(_ *bpf.LBCtKey, e *lb.Entry) {
		c.Entries++
		switch {
		case e.State < lb.StateEstablished:
			c.Handshake++
		case e.State > lb.StateEstablished:
			c.Closing++
		}
	})
	return c, err
}
