package peers

import (
	"time"

	"github.com/hashicorp/memberlist"
)

// minDeadTime keeps the time limit of a probe above scheduling jitter.
const minDeadTime = 400 * time.Millisecond

// defaultDeadTime returns the default of Options.DeadTime for a profile.
func defaultDeadTime(p Profile) time.Duration {
	switch p {
	case ProfileLAN:
		return 4 * time.Second
	case ProfileLocal:
		return time.Second
	case ProfileWAN:
		return 20 * time.Second
	}
	return 0
}

// setDeadTime sets the times of memberlist. A node becomes suspect when a direct and the indirect
// probes fail for one probe interval. It counts as dead if it does not refute that for four more
// intervals. Each node is probed once per round over all nodes. A probe interval of an eighth of
// DeadTime achieves DeadTime for a handful of nodes.
func (o Options) setDeadTime(conf *memberlist.Config) {
	conf.ProbeInterval = o.DeadTime / 8
	conf.ProbeTimeout = conf.ProbeInterval / 2
	conf.SuspicionMult = 4
	// By default, memberlist waits up to six times as long for other nodes to confirm.
	conf.SuspicionMaxTimeoutMult = 2
	// The factor by which a node with a bad health score slows its probes.
	conf.AwarenessMaxMultiplier = 3
	conf.GossipInterval = max(conf.ProbeInterval/5, 20*time.Millisecond)
	conf.PushPullInterval = 4 * o.DeadTime
	conf.GossipToTheDeadTime = max(8*o.DeadTime, 30*time.Second)
	conf.TCPTimeout = max(o.DeadTime, 2*time.Second)
}
