package peers

import (
	"time"

	"github.com/hashicorp/memberlist"
)

// memberlistConfig returns the settings of memberlist.
func (o Options) memberlistConfig() (*memberlist.Config, error) {
	conf := memberlist.DefaultLANConfig()
	if o.Profile == ProfileWAN {
		conf = memberlist.DefaultWANConfig()
	}
	conf.Name = o.NodeName
	o.setDeadTime(conf)
	// memberlist accepts a returning node with another address as soon as its former address counts as
	// dead.
	conf.DeadNodeReclaimTime = time.Nanosecond
	// Messages are small, and decompressing data of unauthenticated senders is a risk.
	conf.EnableCompression = false
	conf.Label, conf.SkipInboundLabelCheck = o.Cluster, true // the transport checks it
	if len(o.GossipKeys) > 0 {
		ring, err := newKeyring(o.GossipKeys)
		if err != nil {
			return nil, err
		}
		conf.Keyring = ring
	}
	return conf, nil
}
