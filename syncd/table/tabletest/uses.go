package tabletest

import (
	"fmt"
	"time"

	"mapsync/syncd/table"
)

// use lets the load balancer of a node use an entry without a change.
func (n *Node) use(key int) {
	if n.uses != nil && n.suspendedAt == 0 && n.Map.entries[key].live {
		n.uses[key] = n.clock()
	}
}

// observedUses are the uses that the hooks of a daemon have observed. It implements table.Uses.
type observedUses struct{ d *Daemon }

// Idle returns the time since the last use of a key, or since the start of the daemon.
func (o observedUses) Idle(key []byte) (idle time.Duration, used bool) {
	n := o.d.n
	last := n.uses[o.d.keyNumber(key)]
	if used = last > o.d.usesSince; !used {
		last = o.d.usesSince
	}
	return time.Duration(n.clock() - last), used
}

// expireTakenOver expires the entries that were taken over, with all passes that are due. No entry may expire that the load
// balancer of this node has used within the time.
func (d *Daemon) expireTakenOver() {
	var uses table.Uses
	if d.n.uses != nil {
		uses = observedUses{d}
		if d.usesSince == 0 {
			d.usesSince = d.n.clock()
		}
	}
	used, usedByPeers, timers := d.recentlyUsed(), d.usedByPeers(), d.withTimers()
	before := d.stats().TakeoversExpired
	d.tab.Update(func(tx *table.Tx) {
		for more := tx.ObserveTakeover(d.n.clock()); more; {
			_, more = tx.ExpireTakenOver(d.n.clock(), uses, 3)
		}
	})
	w := d.n.world
	if w.moves += int(d.stats().TakeoversExpired - before); d.stats().TakeoversExpired == before {
		return
	}
	d.checkUsedByPeers(usedByPeers, "takeover-expiry")
	d.checkTimers(timers)
	for _, key := range used {
		if c := d.Content(key); !c.Live() {
			w.fail(fmt.Errorf("%s: the used entry %s expires", d.n.Name, w.name(key)))
		}
	}
}

// recentlyUsed returns the keys with a live record whose entries the load balancer has used within the time of the expiry.
func (d *Daemon) recentlyUsed() (keys []int) {
	for key, at := range d.n.uses {
		if c := d.Content(key); at > 0 && d.n.clock()-at < int64(d.n.opt.TakeoverExpiry) && c.Live() {
			keys = append(keys, key)
		}
	}
	return keys
}
