package tabletest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"mapsync/syncd/table"
)

// config selects the work and the faults of a run. Each run gets only some of them, because frequent
// events hide rare ones. Faults that are on happen at random times: see fault.
type config struct {
	steps        int     // number of steps before the cluster heals
	workPercent  int     // share of the steps that are actions of a load balancer, in percent
	faultPercent int     // share of the steps that are faults, in percent
	homes        float64 // share of the keys that only one load balancer writes
	kprobe       bool    // changes by bpf(2) are not observed
	expiry       bool    // collectors of standbys delete entries
	inPlace      bool    // changes in place
	losses       bool    // events are lost

	crash, lostMap, newMap, hide, freeze, faulty bool
	cut, partitions, oneWay, gossip              bool
	clocks, resend, jumps, filters               bool
	sequences                                    []func(*Node) // series of events that rules need in this order: see focus
	stops                                        bool          // some daemons are stopped cleanly
	restartChance                                float64       // of a node that is down at the end

	shared      sharedFaults
	environment environment
	layouts     layoutFaults
}

// newRun creates the cluster of a seed. The order of the draws is part of the meaning of a seed.
func newRun(t *testing.T, seed uint64, o *SimulationOptions, tables *Tables) *simulation {
	r := &simulation{seed: seed, stats: make(map[string]int), rand: rand.New(rand.NewPCG(seed, 0x6d61707379_6e63))}
	size := r.size()
	if o.Focus != "" {
		size = 2 + r.rand.IntN(3)
	}
	r.World = NewWorld(t, tables, NodeNames(size)...)
	r.Model = &Model{world: r.World}
	r.drawConfig()
	r.drawSharedFaults()
	r.drawEnvironment(o.DeletesAny)
	r.drawLayoutFaults()
	if o.Focus != "" {
		r.focus(o.Focus)
	}
	space := r.keySpace()
	if o.Focus != "" {
		space = 1 + space%6
	}
	for i := range space {
		// All load balancers write a key without a home. The model then checks only that nodes agree.
		k := modelKey{home: -1}
		if r.chance(r.config.homes) {
			k.home = r.rand.IntN(len(r.Nodes))
		}
		r.Model.keys = append(r.Model.keys, k)
		r.Key(padded(fmt.Sprint("k", i)))
	}
	r.Model.skewed = r.config.clocks
	r.configureNodes()
	r.configureFocus(o.Focus)
	if o.Stops {
		r.configureStops()
	}
	if o.DeletesAny {
		r.configureDeletes()
	}
	r.configureSharedFaults()
	r.configureEnvironment()
	r.configureLayoutFaults()
	return r
}

// size draws a number of nodes. Small clusters are frequent, because more happens to each of their
// nodes.
func (r *simulation) size() int {
	switch x := r.rand.IntN(100); {
	case x < 70:
		return 2 + r.rand.IntN(4)
	case x < 90:
		return 6 + r.rand.IntN(4)
	default:
		return 10 + r.rand.IntN(MaxNodes-9)
	}
}

// keySpace draws a number of keys. It is mostly so small that several nodes use the same keys. Large
// sets of keys test batches, scans and limits instead.
func (r *simulation) keySpace() int {
	if r.chance(0.03) {
		return 50 + r.rand.IntN(150)
	}
	return 1 + r.rand.IntN(1+r.rand.IntN(24))
}

// coin returns true half of the time.
func (r *simulation) coin() bool { return r.chance(0.5) }

// drawConfig draws the configuration of the run. Changes that hooks do not detect need scans, so they
// are drawn only with these.
func (r *simulation) drawConfig() {
	f := &r.config
	f.steps = 80 + r.rand.IntN(120) + r.rand.IntN(60*len(r.Nodes))
	f.workPercent, f.faultPercent = 10+r.rand.IntN(40), r.rand.IntN(15)
	f.homes = []float64{0, 0.5, 0.9, 1}[r.rand.IntN(4)]
	f.expiry, f.crash, f.clocks, f.cut, f.partitions = r.coin(), r.chance(0.6), r.coin(), r.coin(), r.coin()
	f.lostMap, f.newMap, f.hide, f.freeze, f.faulty = r.coin(), r.chance(0.2), r.chance(0.2), r.chance(0.3), r.chance(0.2)
	f.oneWay, f.gossip, f.resend, f.jumps = r.coin(), r.chance(0.2), r.chance(0.3), r.chance(0.3)
	f.filters = r.chance(0.3)
	if r.chance(0.1) {
		r.tick = int64(10 * time.Millisecond) // so that some versions are equal
	}
	f.restartChance = []float64{0, 0.5, 1}[r.rand.IntN(3)]
	if r.scans = r.chance(0.6); r.scans {
		f.inPlace, f.losses, f.kprobe, r.blind = r.coin(), r.coin(), r.chance(0.3), r.chance(0.1)
	}
}

// configureNodes configures the nodes. All nodes of a cluster have the same settings, as in production.
// Only sizes of maps, clocks and speeds of writers differ.
func (r *simulation) configureNodes() {
	o := table.Options{DigestKey: []byte("sim"), EvictionDeletes: r.chance(0.3), HoldClears: r.coin()}
	if r.coin() {
		o.Significant, o.Carried = significantMask, carriedMask
		o.Refresh = []time.Duration{0, 10 * time.Second, time.Millisecond}[r.rand.IntN(3)]
	}
	if r.coin() {
		o.SettleKeys = 8
	}
	// Short lifetimes make tables forget deletes that a node has not received. Otherwise none are
	// forgotten by age.
	if r.scans && r.chance(0.4) {
		o.TombstoneTTL = []time.Duration{10 * time.Second, time.Minute}[r.rand.IntN(2)]
	} else {
		o.TombstoneTTL = 1000 * time.Hour
	}
	o.EvictedTTL = []time.Duration{time.Millisecond, 5 * time.Second, 30 * time.Second}[r.rand.IntN(3)]
	o.MaxEvicted = 1 + r.rand.IntN(5)
	o.TombstoneGrace = []time.Duration{time.Millisecond, time.Second, 5 * time.Second}[r.rand.IntN(3)]
	if r.scans && r.chance(0.1) {
		o.MaxTombstones = 1 + r.rand.IntN(6)
	}
	early := r.scans && r.coin()
	lru, small := !r.blind && r.coin(), r.chance(0.3)
	unseen := r.coin()
	for _, n := range r.Nodes {
		n.opt, n.burst, n.forgetAcknowledged = o, 1+r.rand.IntN(8), early
		n.Map.entries = make([]entry, len(r.keys))
		// Only some nodes have a small map.
		if small && r.coin() {
			n.room, n.lru, n.evictionsUnseen = 1+r.rand.IntN(len(r.keys)+1), lru, unseen
		}
		r.setClock(n)
	}
}

// configureDeletes lets deletes by collectors replicate. syncd refuses that for LRU maps. A new map wins then by default.
func (r *simulation) configureDeletes() {
	r.config.expiry = true
	for _, n := range r.Nodes {
		n.opt.DeletesAny, n.opt.NewMapWins, n.lru = true, true, false
	}
}

// setClock sets the clock of a node. Clocks change only while the daemon is down. Small offsets are
// always present. With the fault, each clock is up to an hour off.
func (r *simulation) setClock(n *Node) {
	if e := &r.config.environment; e.clocks && n.incarnations > 0 && e.chance(0.5) {
		return
	}
	n.wallStep, n.suspendedAt = 0, 0
	if r.config.clocks {
		n.Offset = r.rand.Int64N(2*int64(time.Hour)) - int64(time.Hour)
	} else {
		n.Offset = r.rand.Int64N(2e6) - 1e6
	}
}

// advanceTime advances the time, mostly by the duration of a step. Long steps let waiting times pass:
// rereads, expiries, tombstones and, with jumps, the timeouts of membership.
func (r *simulation) advanceTime() {
	d := int64(50 * time.Microsecond)
	switch x := r.rand.IntN(1000); {
	case x < 500:
	case x < 850:
		d = int64(2 * time.Millisecond)
	case x < 960:
		d = int64(100 * time.Millisecond)
	case x < 992:
		d = int64(5 * time.Second)
	case r.config.jumps:
		d = int64(time.Minute)
	}
	r.Now += 1 + r.rand.Int64N(d)
}
