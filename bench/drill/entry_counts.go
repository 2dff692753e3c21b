package drill

import (
	"errors"

	"mapsync/bench/lb"
	"mapsync/bench/lb/bpf"
)

// EntryCounts counts the entries of a connection-tracking map. Each session has two entries.
type EntryCounts struct {
	Entries   int `json:"entries"`
	Handshake int `json:"handshake"` // in a state before established: later changes are missing
	Closing   int `json:"closing"`
}

// countEntries counts the entries in the map of a node.
func (r *run) countEntries(i int) (c EntryCounts, err error) {
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

// eachEntry calls fn for each entry in the map of a node. It reads on a processor that serves no
// packets: such calls hide writes on their processor from the hooks under test.
func (r *run) eachEntry(i int, fn func(*bpf.LBCtKey, *lb.Entry)) error {
	m, err := r.openMap(i)
	if err != nil {
		return err
	}
	err = control.run(func() error { return r.opts.Layouts[i].ForEach(m, fn) })
	return errors.Join(err, m.Close())
}
