package daemon_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/internal/testcert"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
)

// watchReady fails the test if one of the nodes is not ready before stop is called.
func watchReady(t *testing.T, nodes ...*node) (stop func()) {
	t.Helper()
	ended, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			for _, n := range nodes {
				if r, err := n.client.Ready(t.Context()); err != nil || !r.Ready {
					t.Errorf("%s: got not ready (%v, error %v), want ready", n.config.NodeName, r.Missing, err)
					return
				}
			}
			select {
			case <-ended:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	stop = sync.OnceFunc(func() { close(ended); <-stopped })
	t.Cleanup(stop)
	return stop
}

func (n *node) gossipKeys(keys ...byte) {
	n.t.Helper()
	var text string
	for _, k := range keys {
		text += base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{k}, 32)) + "\n"
	}
	if err := os.WriteFile(n.config.GossipKeyFile, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// Maps are added and removed while the other maps replicate, and all nodes stay in service.
func TestReloadAddsAndRemovesMaps(t *testing.T) {
	n1, n2, m1, m2 := syncedPair(t)
	dir := filepath.Dir(n1.pin)
	more1, more2 := pinned(t, filepath.Join(dir, "more1"), 8, 8, 1000), pinned(t, filepath.Join(dir, "more2"), 8, 8, 1000)
	key, value := pair(7, 7) // an entry that is older than syncd and unknown to the peer
	if err := more1.Put(key, value); err != nil {
		t.Fatal(err)
	}
	stop := watchReady(t, n1, n2)
	with := func(n *node, maps ...string) config.Config {
		next := n.config
		next.Maps = maps
		return next
	}
	more := map[*node]string{n1: "more=" + filepath.Join(dir, "more1"), n2: "more=" + filepath.Join(dir, "more2")}
	for _, n := range []*node{n1, n2} {
		done, err := n.reload(with(n, more[n], "ct="+n.pin))
		if err != nil || !slices.Equal(done.Added, []string{"more"}) || len(done.Removed) != 0 || len(done.NeedsRestart) != 0 {
			t.Fatalf("reload: got %+v, error %v, want map \"more\" added", done, err)
		}
	}
	n1.write(more1, 100, 200, 3)
	n1.write(m1, 0, 500, 8)
	poll.Eventually(t, "both maps replicate", func() bool {
		var v []byte
		return holds(t, m2, 500, 8) && more2.Lookup(key, &v) == nil && entryCount(t, more2) == 101
	})
	// The used map is removed on one node. Its entries stay in the kernel map.
	done, err := n2.reload(with(n2, more[n2]))
	if err != nil || !slices.Equal(done.Removed, []string{"ct"}) || len(done.Added) != 0 {
		t.Fatalf("reload: got %+v, error %v, want map ct removed", done, err)
	}
	n1.write(m1, 0, 500, 9)
	n1.write(more1, 100, 200, 4)
	poll.Eventually(t, "the other map still replicates", func() bool { k, _ := pair(100, 0); var v []byte; return more2.Lookup(k, &v) == nil && v[0] == 4 })
	if s := n2.status(); len(s.Maps) != 1 || s.Maps[0].Name != "more" || !holds(t, m2, 500, 8) {
		t.Errorf("maps after the removal: got %+v, want \"more\" only, and unchanged entries of ct", s.Maps)
	}
	if strings.Contains(n2.metrics(), `map="ct",state="live"`) {
		t.Error("metrics of the removed map: got some, want none")
	}
	_, state := n2.readState()
	poll.Eventually(t, "the state file does not contain the removed map", func() bool { _, state = n2.readState(); return state["kernel_maps"].(map[string]any)["ct"] == nil })
	stop()
	// The map is added again and receives the records of the peer.
	if done, err := n2.reload(with(n2, "ct="+n2.pin, more[n2])); err != nil || !slices.Equal(done.Added, []string{"ct"}) {
		t.Fatalf("reload: got %+v, error %v, want map ct added", done, err)
	}
	poll.Eventually(t, "the map holds all entries", func() bool { return holds(t, m2, 500, 9) && n2.status().Ready })
}

func entryCount(t *testing.T, m *ebpf.Map) (n int) {
	t.Helper()
	var key, value []byte
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		n++
	}
	if err := entries.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}

// Settings that cannot be used change nothing. Log, metric and error contain the reason.
func TestFailedReloadChangesNothing(t *testing.T) {
	ca, err := testcert.NewCA(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	pin := filepath.Join(pinDir(t), "ct")
	pinned(t, pin, 8, 8, 100)
	n := newNode(t, 1, "ct="+pin)
	n.config.Join = nil
	n.secure(ca, testcert.Options{}, 1)
	n.start()
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	cert, err := os.ReadFile(n.config.TLSCert)
	if err != nil {
		t.Fatal(err)
	}
	good, before := n.config, n.status().CertExpires
	good.Maps = []string{"ct=" + pin, "new=/sys/fs/bpf/none"}
	for name, c := range map[string]struct {
		want  string
		spoil func(next *config.Config)
	}{
		"settings":       {"is unknown: choose", func(next *config.Config) { next.Attach = "magic" }},
		"maps":           {"one name", func(next *config.Config) { next.Maps = append(next.Maps, "dup="+pin) }},
		"field":          {"no map of that name", func(next *config.Config) { next.Fields = []string{"other:x=ktime"} }},
		"gossip key":     {"5 bytes", func(*config.Config) { writeFile(t, n.config.GossipKeyFile, []byte("c2hvcnQ=\n")) }},
		"empty key file": {"holds no gossip key", func(*config.Config) { writeFile(t, n.config.GossipKeyFile, nil) }},
		"certificate":    {"holds no PEM block", func(*config.Config) { writeFile(t, n.config.TLSCert, []byte("junk")) }},
	} {
		t.Run(name, func(t *testing.T) {
			next := good
			next.Maps = slices.Clone(good.Maps)
			c.spoil(&next)
			if _, err := n.reload(next); !errors.Is(err, daemon.ErrSettings) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("reload: got error %v, want %q", err, c.want)
			}
			if s := n.status(); len(s.Maps) != 1 || !s.Ready || !s.CertExpires.Equal(before) {
				t.Errorf("status after a failed reload: got %+v, want it unchanged", s)
			}
			if !strings.Contains(n.metrics(), "mapsync_config_last_reload_successful 0") || !n.log.contains("settings not reloaded") {
				t.Error("failed reload: want it in the metric and in the log")
			}
			n.gossipKeys(1)
			writeFile(t, n.config.TLSCert, cert)
		})
	}
	good.MetricsListen, good.ScanBudget = "127.0.0.1:1", 7
	done, err := n.reload(good)
	if err != nil || !slices.Equal(done.NeedsRestart, []string{"scan-budget", "metrics-listen"}) {
		t.Errorf("reload: got %+v, error %v, want two settings that need a restart", done, err)
	}
	n.config.MetricsListen = loopback(1) + ":9746"
	if !strings.Contains(n.metrics(), "mapsync_config_last_reload_successful 1") || len(n.status().Maps) != 2 {
		t.Error("valid settings: want them applied")
	}
}

// TestReloadOfGrowingSettings: aliases that would need hundreds of MB are refused with little memory. The daemon keeps its
// settings, and the command and the log have the reason.
func TestReloadOfGrowingSettings(t *testing.T) {
	pin := filepath.Join(pinDir(t), "ct")
	pinned(t, pin, 8, 8, 100)
	n := newNode(t, 1, "ct="+pin)
	n.config.Join = nil
	n.start()
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	text := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'i'; c++ {
		text += fmt.Sprintf("%c: &%[1]c [%s*%[3]c]\n", c, strings.Repeat(fmt.Sprintf("*%c,", c-1), 8), c-1)
	}
	path := filepath.Join(n.dir, "syncd.yaml")
	writeFile(t, path, []byte(text+"expected-peers: *h\n"))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := n.reloadFrom(func() (config.Config, error) { return config.Load(path, nil) })
	runtime.ReadMemStats(&after)
	if mb := (after.TotalAlloc - before.TotalAlloc) >> 20; mb > 32 {
		t.Errorf("reload: %d MB allocated, want at most 32 MB, most of them by the rest of the daemon", mb)
	}
	const want = "line 1 has an anchor: remove it"
	if !errors.Is(err, daemon.ErrSettings) || !strings.Contains(err.Error(), want) || !n.log.contains(want) {
		t.Errorf("reload: got error %v, want %q in it and in the log", err, want)
	}
	if s := n.status(); len(s.Maps) != 1 || !s.Ready || !strings.Contains(n.metrics(), "mapsync_config_last_reload_successful 0") {
		t.Errorf("status after the reload: got %+v, want it unchanged, and the failure in the metric", s)
	}
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A replaced certificate is used when the reload has returned.
func TestReloadTakesCertificates(t *testing.T) {
	ca, err := testcert.NewCA(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t, 1, "ct=/sys/fs/bpf/none")
	n.secure(ca, testcert.Options{}, 1)
	n.start()
	ends := time.Now().Add(40 * 24 * time.Hour).Truncate(time.Second)
	n.secure(ca, testcert.Options{NotAfter: ends}, 1)
	if _, err := n.reload(n.config); err != nil {
		t.Fatal(err)
	}
	if got := n.status().CertExpires; !got.Equal(ends) {
		t.Errorf("expiry of the certificate in use: got %s, want %s", got, ends)
	}
}

// Gossip keys are rotated in three steps, node by node. All nodes stay peers and in service.
// While first keys differ, the comparison is unknown and not divergent. Afterwards the digests
// agree.
func TestReloadRotatesGossipKeys(t *testing.T) {
	ca, err := testcert.NewCA(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	n1, n2, m1, m2 := twoNodes(t, 1000)
	n1.secure(ca, testcert.Options{}, 1)
	n2.secure(ca, testcert.Options{}, 1)
	startPair(t, n1, n2)
	n1.write(m1, 0, 500, 7)
	stop := watchReady(t, n1, n2)
	agree := func() bool {
		for _, n := range []*node{n1, n2} {
			s := n.status()
			if len(s.Peers) != 1 || !s.Peers[0].Maps[0].Agreed || s.Peers[0].Maps[0].Incomparable != "" {
				return false
			}
		}
		return holds(t, m1, 500, 7) && holds(t, m2, 500, 7)
	}
	poll.Eventually(t, "digests agree", agree)
	for _, keys := range [][]byte{{1, 2}, {2, 1}, {2}} {
		for _, n := range []*node{n1, n2} {
			n.gossipKeys(keys...)
			if done, err := n.reload(n.config); err != nil || done.Keys != (keys[0] == 2 && len(keys) == 2) {
				t.Fatalf("reload with keys %v: got %+v, error %v, want Keys only if the first key changed", keys, done, err)
			}
			if n == n1 && keys[0] == 2 && len(keys) == 2 {
				poll.Eventually(t, "the comparison is unknown", func() bool { return n1.status().Peers[0].Maps[0].Incomparable != "" })
				n1.write(m1, 0, 500, 7) // replication continues
			}
			if d := n.status().Peers[0].Maps[0].Divergent; d != 0 {
				t.Errorf("divergent entries with keys %v: got %d, want 0", keys, d)
			}
		}
		poll.Eventually(t, "digests agree again", agree)
	}
	stop()
	for _, n := range []*node{n1, n2} {
		if text := n.metrics(); strings.Contains(text, "mapsync_repairs_total 1") || !strings.Contains(text, "mapsync_gossip_members 1") {
			t.Error("metrics after the rotation: want no repairs and one peer")
		}
	}
	n2.stop()
	n2.start()
	poll.Eventually(t, "the restarted node is ready", func() bool { return n2.status().Ready && agree() })
}
