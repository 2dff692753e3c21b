package drill

import (
	"encoding/json"
	"testing"

	"github.com/goccy/go-yaml"

	"mapsync/syncd/config"
	syncd "mapsync/syncd/daemon"
)

// TestSettingsMatchSyncd checks that the names of settings and status fields in the drill are those
// of syncd.
func TestSettingsMatchSyncd(t *testing.T) {
	text, err := yaml.Marshal(&settings{
		NodeName: "lb1", Maps: []string{"/sys/fs/bpf/ct_map"}, Schemas: []string{"ct_map=/lb.o"}, Attach: "kprobe", Buffer: "perf",
		GossipListen: "10.13.0.1:7946", GossipKeyFile: "/gossip.key", Join: []string{"10.13.0.2:7946"},
		GRPCListen: "10.13.0.1:7947", TLSCert: "/cert.pem", TLSKey: "/key.pem", TLSCA: "/ca.pem",
		ControlSocket: "/syncd.sock", StateDir: "/state", LogLevel: "warn",
		RefreshInterval: "0s", ScanInterval: "200ms", ScanBudget: 20, DeadTime: "15s",
	})
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	if err := c.Parse(text); err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

func TestStatusMatchesSyncd(t *testing.T) {
	text, err := json.Marshal(syncd.Status{
		Version: "1.0",
		Ready:   true,
		Capture: syncd.CaptureStatus{Events: 7},
		Peers: []syncd.PeerStatus{{
			Receiving: true, Sending: true,
			Maps: []syncd.PeerMapStatus{{LagEntries: 5, Agreed: true}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var s status
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	if lag, known := s.lag(); !s.connected() || lag != 5 || !known || s.Capture.Events != 7 || s.Version != "1.0" || !s.Peers[0].Maps[0].Agreed {
		t.Errorf("status from %s: got %+v, want version 1.0, connected, in sync, lag 5, 7 events", text, s)
	}
}
