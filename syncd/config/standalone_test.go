package config

import "testing"

func TestStandalone(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		want   bool
	}{
		"default settings":         {func(*Config) {}, true},
		"own name as a peer":       {func(c *Config) { c.ExpectedPeers = PeerList{c.NodeName} }, true},
		"no expected peers":        {func(c *Config) { c.ExpectedPeers = PeerList{"0"} }, true},
		"other loopback addresses": {func(c *Config) { c.GossipListen, c.GRPCListen = "127.9.9.9:0", "[::1]:7947" }, true},
		"localhost":                {func(c *Config) { c.GRPCListen = "localhost:7947" }, true},
		"join":                     {func(c *Config) { c.Join = []string{"127.0.0.2:7946"} }, false},
		"expected peer":            {func(c *Config) { c.ExpectedPeers = PeerList{"other"} }, false},
		"number of peers":          {func(c *Config) { c.ExpectedPeers = PeerList{"1"} }, false},
		"observers":                {func(c *Config) { c.Observers = []string{"o"} }, false},
		"insecure":                 {func(c *Config) { c.Insecure = true }, false},
		"TLS":                      {func(c *Config) { c.TLSCert = "a.crt" }, false},
		"gossip key":               {func(c *Config) { c.GossipKeyFile = "gossip.key" }, false},
		"address of streams":       {func(c *Config) { c.GRPCListen = "10.0.0.1:7947" }, false},
		"all addresses":            {func(c *Config) { c.GRPCListen = "[::]:7947" }, false},
		"address of gossip":        {func(c *Config) { c.GossipListen = "10.0.0.1:7946" }, false},
		"advertised addresses":     {func(c *Config) { c.GRPCAdvertise = "10.0.0.1:7947" }, false},
		"advertised gossip":        {func(c *Config) { c.GossipAdvertise = "lb1.example:7946" }, false},
	} {
		c := Default()
		c.NodeName = "own"
		test.change(&c)
		if got := c.Standalone(); got != test.want {
			t.Errorf("%s: got standalone %v, want %v", name, got, test.want)
		}
	}
}
