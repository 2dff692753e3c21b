package drill

import (
	"errors"

	"mapsync/bench/lb"
	"mapsync/bench/lb/bpf"
)

// Census counts the entries of a connection-tracking map. Each session has two.
type Census struct {
	Entries   int `json:"entries"`
	Handshake int `json:"handshake"` // in a state before established: the creation was seen, what followed not
	Closing   int `json:"closing"`
}

// takeCensus reads the map of a node.
func (r *run) takeCensus(i int) (c Census, err error) {
	err = r.eachEntry(i, func(_ *bpf.LBCtKey, e *lb.Entry) {
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

// eachEntry calls fn with the entries in the map of a node. It reads where no packet is
// served: such calls hide writes on their processor from hooks under test.
func (r *run) eachEntry(i int, fn func(*bpf.LBCtKey, *lb.Entry)) error {
	m, err := r.openMap(i)
	if err != nil {
		return err
	}
	err = control.do(func() error { return r.opts.Layouts[i].ForEach(m, fn) })
	return errors.Join(err, m.Close())
}
