package daemon_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/internal/testcert"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
)

// A reload applies the settings of permissions. Forbidden streams end, allowed streams begin, and
// all nodes stay in service.
func TestReloadAppliesPermissions(t *testing.T) {
	dir := t.TempDir()
	ca, err := testcert.NewCA(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	list, err := ca.Revoke()
	if err != nil {
		t.Fatal(err)
	}
	n1, n2, m1, m2 := twoNodes(t, 1000)
	n1.secure(ca, testcert.Options{}, 1)
	n2.secure(ca, testcert.Options{}, 1)
	startPair(t, n1, n2)
	n1.write(m1, 0, 10, 1)
	poll.Eventually(t, "the peer's map holds all entries", func() bool { return holds(t, m2, 10, 1) })
	stop := watchReady(t, n1)
	open := n1.config
	reload := func(access bool, change func(c *config.Config)) {
		t.Helper()
		next := open
		change(&next)
		done, err := n1.reload(next)
		if err != nil || len(done.NeedsRestart) != 0 || len(done.Added)+len(done.Removed) != 0 || slices.Contains(done.Access, "ct") != access {
			t.Fatalf("reload: got %+v, error %v, want only access changes", done, err)
		}
	}
	states := func(receive, send string) func() bool {
		return func() bool {
			s := n1.status()
			return len(s.Peers) == 1 && s.Peers[0].Maps[0].State == receive && s.Peers[0].Maps[0].SendState == send
		}
	}
	apart := func() bool {
		for _, p := range n1.status().Peers {
			if p.Receiving || p.Sending {
				return false
			}
		}
		return true
	}
	lastKey := uint64(1000)
	replicates := func() {
		t.Helper()
		lastKey++
		n1.write(m1, lastKey, lastKey+1, 1)
		n2.write(m2, lastKey+1000, lastKey+1001, 1)
		k1, _ := pair(lastKey, 0)
		k2, _ := pair(lastKey+1000, 0)
		poll.Eventually(t, "both directions work", func() bool {
			var v []byte
			return m2.Lookup(k1, &v) == nil && m1.Lookup(k2, &v) == nil
		})
	}
	for _, c := range []struct {
		what   string
		access bool
		change func(c *config.Config)
		ended  func() bool
	}{
		{"write-from", true, func(c *config.Config) { c.WriteFrom = []string{"ct=n1"} }, states("excluded", "served")},
		{"read-from", true, func(c *config.Config) { c.ReadFrom = []string{"ct=n1"} }, states("caught_up", "excluded")},
		{"allowed-names", false, func(c *config.Config) { c.AllowedNames = []string{"n1", "n3"} }, apart},
	} {
		reload(c.access, c.change)
		poll.Eventually(t, c.what+" ends the forbidden streams", c.ended)
		reload(c.access, func(*config.Config) {})
		poll.Eventually(t, c.what+" allows the streams again", states("caught_up", "served"))
		replicates()
	}
	pair, err := ca.Issue("n2", testcert.Options{File: "unused"}) // revoked, but not in use
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Revoke(pair); err != nil {
		t.Fatal(err)
	}
	reload(false, func(c *config.Config) { c.TLSCRL = list })
	replicates()
	inUse := testcert.Pair{CertFile: n2.config.TLSCert, KeyFile: n2.config.TLSKey}
	if _, err := ca.Revoke(inUse); err != nil {
		t.Fatal(err)
	}
	reload(false, func(c *config.Config) { c.TLSCRL = list })
	poll.Eventually(t, "the revoked peer is disconnected", apart)
	stop()
}

// A reload refuses invalid settings of permissions, and lists the settings that need a restart.
func TestReloadRefusesInvalidPermissions(t *testing.T) {
	pin := filepath.Join(pinDir(t), "ct")
	pinned(t, pin, 8, 8, 100)
	n := newNode(t, 1, "ct="+pin)
	n.config.Join = nil
	n.start()
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	for what, change := range map[string]func(c *config.Config){
		`allowed-names "["`:                    func(c *config.Config) { c.AllowedNames = []string{"["} },
		"no map is called":                     func(c *config.Config) { c.ReadFrom = []string{"nat=n2"} },
		"a reload cannot turn TLS on or off: ": func(c *config.Config) { c.TLSCert, c.TLSKey, c.TLSCA = "a", "b", "c" },
	} {
		next := n.config
		change(&next)
		if _, err := n.reload(next); !errors.Is(err, daemon.ErrSettings) || !strings.Contains(err.Error(), what) {
			t.Errorf("reload: got error %v, want %q", err, what)
		}
	}
	next := n.config
	next.MaxConnections++
	done, err := n.reload(next)
	if err != nil || !slices.Equal(done.NeedsRestart, []string{"max-connections"}) || !n.log.contains("systemctl restart syncd") {
		t.Errorf("reload: got %+v, error %v, want max-connections to need a restart", done, err)
	}
}
