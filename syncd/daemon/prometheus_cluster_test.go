package daemon_test

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"mapsync/internal/netns"
	"mapsync/internal/poll"
	"mapsync/internal/testcert"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// childNode is a node in its own process, which can be stopped and continued.
type childNode struct {
	*node
	cmd   *exec.Cmd
	stdin io.Closer
	ns    *netns.NS // its network namespace; nil: that of the test
}

func (c *childNode) start() {
	c.t.Helper()
	settings, err := json.Marshal(c.config)
	if err != nil {
		c.t.Fatal(err)
	}
	c.cmd = exec.Command("/proc/self/exe")
	c.cmd.Env = append(os.Environ(), joinerVariable+"="+string(settings))
	c.cmd.Stdout, c.cmd.Stderr = c.t.Output(), c.t.Output()
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		c.t.Fatal(err)
	}
	start := c.cmd.Start
	if c.ns != nil {
		start = func() error { return c.ns.Start(c.cmd) }
	}
	if err := start(); err != nil {
		c.t.Fatal(err)
	}
	c.stop = sync.OnceFunc(func() {
		_ = c.cmd.Process.Signal(syscall.SIGCONT)
		_ = c.stdin.Close()
		if err := c.cmd.Wait(); err != nil {
			c.t.Error(err)
		}
	})
	c.t.Cleanup(c.stop)
	c.client = daemon.NewClient(c.config.ControlSocket)
}

func (c *childNode) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

// alertCluster has three nodes with certificates, and three maps of the same size on all nodes: one that a scenario makes smaller
// on n2, and one whose keys have padding.
type alertCluster struct {
	t             *testing.T
	dir           string
	ca            *testcert.CA
	n1, n2        *node
	n3            *childNode
	ct1, ct2      *ebpf.Map
	small, padded *ebpf.Map // of n1
	stateDir      string    // of n2, on its own file system
	proxy         *metricsProxy
}

// aMonth returns a validity that is longer than the period of the alert about expiring
// certificates.
func aMonth() testcert.Options {
	return testcert.Options{NotAfter: time.Now().Add(30 * 24 * time.Hour)}
}

func newAlertCluster(t *testing.T) *alertCluster {
	t.Helper()
	c := &alertCluster{t: t, dir: pinDir(t), stateDir: t.TempDir()}
	var err error
	if c.ca, err = testcert.NewCA(t.TempDir(), "ca"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", c.stateDir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(c.stateDir, unix.MNT_DETACH) })
	c.n1, c.n2, c.n3 = c.node(1), c.node(2), &childNode{node: c.node(3)}
	c.n1.config.ExpectedPeers = config.PeerList{"n2", "n3"}
	c.n2.config.StateDir, c.n2.config.BufferSize = c.stateDir, 4096
	c.ct1, c.ct2 = c.pinned(1, "ct", 8, 10000), c.pinned(2, "ct", 8, 10000)
	c.pinned(3, "ct", 8, 10000)
	c.small = c.pinned(1, "small", 8, 1000)
	c.pinned(2, "small", 8, 1000)
	c.pinned(3, "small", 8, 1000)
	for number := 3; number >= 1; number-- {
		c.padded = pinnedAs(t, c.pin(number, "padded"), paddedSpec())
	}
	c.n1.start()
	c.n2.start()
	c.n3.start()
	c.proxy = newMetricsProxy(t, c.n1)
	return c
}

func (c *alertCluster) pin(number int, name string) string {
	return filepath.Join(c.dir, name+string(rune('0'+number)))
}

func (c *alertCluster) pinned(number int, name string, valueSize, entries uint32) *ebpf.Map {
	return pinned(c.t, c.pin(number, name), 8, valueSize, entries)
}

func (c *alertCluster) node(number int) *node {
	n := newNode(c.t, number, "ct="+c.pin(number, "ct"), "small="+c.pin(number, "small"), "padded="+c.pin(number, "padded"))
	n.secure(c.ca, aMonth(), 1)
	n.gossipKeys(1, 2)
	n.config.DeadTime = 20 * time.Second // a stopped process does not count as dead at once
	n.config.ScanInterval = time.Second
	return n
}

// paddedSpec returns a map whose keys end with two bytes of padding.
func paddedSpec() *ebpf.MapSpec {
	u16, u32 := &btf.Int{Name: "__u16", Size: 2}, &btf.Int{Name: "__u32", Size: 4}
	key := &btf.Struct{Name: "key", Size: 8, Members: []btf.Member{{Name: "addr", Type: u32}, {Name: "port", Type: u16, Offset: 32}}}
	value := &btf.Struct{Name: "value", Size: 4, Members: []btf.Member{{Name: "state", Type: u32}}}
	return &ebpf.MapSpec{Name: "padded", Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: 100, Key: key, Value: value}
}

// ready waits until all nodes are ready.
func (c *alertCluster) ready() {
	c.t.Helper()
	poll.Within(c.t, alertLimit, "all nodes are ready", func() bool {
		for _, n := range []*node{c.n1, c.n2, c.n3.node} {
			if s, err := n.client.Status(c.t.Context()); err != nil || !s.Ready || len(s.Peers) < 2 {
				return false
			}
		}
		return true
	}, func() any {
		why := make(map[string][]string)
		for _, n := range []*node{c.n1, c.n2, c.n3.node} {
			s, _ := n.client.Status(c.t.Context())
			why[n.config.NodeName] = s.NotReady
		}
		return why
	})
}

// remove makes n1's data plane delete the entries [0, count).
func (c *alertCluster) remove(m *ebpf.Map, count int) {
	c.n1.applyEntries(m, count, func(i int) (key, value []byte) { key, _ = pair(uint64(i), 0); return key, nil })
}

// reload makes n reload changed settings, which must be valid.
func (c *alertCluster) reload(n *node, change func(next *config.Config)) {
	c.t.Helper()
	next := n.config
	change(&next)
	if _, err := n.reload(next); err != nil {
		c.t.Fatal(err)
	}
}

// certify gives n2 a new certificate.
func (c *alertCluster) certify(options testcert.Options) {
	c.n2.secure(c.ca, options, 1)
	c.n2.gossipKeys(1, 2)
	c.reload(c.n2, func(*config.Config) {})
}

// revoke gives n2 an empty revocation list with this next update.
func (c *alertCluster) revoke(next time.Time) {
	c.t.Helper()
	list, err := c.ca.RevokeUntil(next)
	if err != nil {
		c.t.Fatal(err)
	}
	c.reload(c.n2, func(next *config.Config) { next.TLSCRL = list })
}

// remountState remounts the file system of n2's state with a flag, read-only or writable. It then
// changes the state.
func (c *alertCluster) remountState(flag uintptr) {
	c.t.Helper()
	if err := unix.Mount("", c.stateDir, "", unix.MS_REMOUNT|flag, ""); err != nil {
		c.t.Fatal(err)
	}
	maps := c.n2.config.Maps
	c.reload(c.n2, func(next *config.Config) { next.Maps = append(maps[:len(maps):len(maps)], "passing=/sys/fs/bpf/none") })
	c.reload(c.n2, func(next *config.Config) { next.Maps = maps })
}

// relayout restarts n3 with a map of another value size.
func (c *alertCluster) relayout(valueSize uint32) {
	c.n3.stop()
	c.pinned(3, "ct", valueSize, 10000)
	c.n3.start()
}

// resize replaces the map small of n2, and waits until n2 uses the new one. Its table takes the limit of the new map.
func (c *alertCluster) resize(entries uint32) {
	c.t.Helper()
	c.pinned(2, "small", 8, entries)
	poll.Eventually(c.t, "the new map is in use", func() bool {
		list := c.n2.status().Maps
		i := slices.IndexFunc(list, func(m daemon.MapStatus) bool { return m.Name == "small" })
		return i >= 0 && list[i].MaxEntries == int(entries) && list[i].State == daemon.MapReplicating
	})
}

// scenarios returns at least one scenario for each alert. The test runs them in the order of
// their names.
func (c *alertCluster) scenarios() map[string]alertScenario {
	var stop func()
	again := func(write func(v uint64)) func() { return func() { stop = writeLoop(c.t, write) } }
	away := problems("redundancy", "not-ready", "stream-missing", "peer-unreachable", "peer-behind", "map-unserved", "comparison-impossible", "gossip-unreachable", "connection-refused")
	away = append(away, "MapsyncNoAnswer", "MapsyncPeersMissing")
	replaced := problems("map-missing", "not-ready", "map-unserved", "redundancy", "peer-behind")
	return map[string]alertScenario{
		"a drained node": {
			begin: func() {
				c.n2.beginDrain()
			},
			end: func() {
				if _, err := c.n2.client.Undrain(c.t.Context()); err != nil {
					c.t.Fatal(err)
				}
			},
		},
		"a node is stopped": {
			want:    []string{"MapsyncNoAnswer", "MapsyncCritical redundancy", "MapsyncPeersMissing"},
			allowed: away,
			begin:   func() { c.n3.stop() },
			end:     func() { c.n3.start(); c.ready() },
		},
		"a map is missing": {
			want:    []string{"MapsyncCritical map-missing", "MapsyncCritical not-ready"},
			allowed: problems("redundancy", "map-unserved", "not-held", "peer-behind"),
			begin: func() {
				if err := os.Remove(c.pin(1, "ct")); err != nil {
					c.t.Fatal(err)
				}
			},
			end: func() { c.ct1 = c.pinned(1, "ct", 8, 10000); c.ready() },
		},
		"a peer has another layout": {
			want:    []string{"MapsyncCritical map-unserved", "MapsyncCritical redundancy"},
			allowed: slices.Concat(away, problems("map-refused")),
			begin:   func() { c.relayout(24) },
			end:     func() { c.relayout(8); c.ready() },
		},
		"a peer stops responding": {
			want:    []string{"MapsyncWarning peer-behind"},
			allowed: away,
			begin: func() {
				c.n3.signal(syscall.SIGSTOP)
				again(func(v uint64) {
					c.n1.write(c.ct1, 0, 10, v)
					time.Sleep(50 * time.Millisecond) // the rate of the changes
				})()
			},
			end: func() { stop(); c.n3.signal(syscall.SIGCONT); c.ready(); c.remove(c.ct1, 10) },
		},
		"a peer's map is too small": {
			want:    []string{"MapsyncCritical failed-writes", "MapsyncWarning not-held", "MapsyncWarning map-differs", "MapsyncCritical redundancy"},
			allowed: slices.Concat(replaced, problems("divergent", "records-over-limit", "refused-entries")),
			begin:   func() { c.resize(100); c.n1.write(c.small, 0, 150, 1) },
			end:     func() { c.remove(c.small, 150); c.resize(1000); c.ready() },
		},
		"a peer sends too many records": {
			want: []string{"MapsyncWarning records-over-limit", "MapsyncWarning refused-entries"},
			allowed: slices.Concat(replaced, problems("divergent", "failed-writes", "not-held", "map-differs", "unsent-entries", "comparison-impossible",
				"peer-behind", "redundancy")),
			begin: func() { c.resize(100); c.n1.write(c.small, 0, 500, 1) },
			end:   func() { c.remove(c.small, 500); c.resize(1000); c.ready() },
		},
		// syncd repairs all differences that a test can cause within seconds. Therefore the proxy
		// changes the sample between the node and Prometheus.
		"entries differ": {
			want:  []string{"MapsyncCritical divergent"},
			begin: func() { c.proxy.divergent.Store(true) },
			end:   func() { c.proxy.divergent.Store(false) },
		},
		"first gossip keys differ": {
			want:    []string{"MapsyncWarning comparison-impossible"},
			allowed: problems("divergent"),
			begin:   func() { c.n2.gossipKeys(2, 1); c.reload(c.n2, func(*config.Config) {}) },
			end:     func() { c.n2.gossipKeys(1, 2); c.reload(c.n2, func(*config.Config) {}) },
		},
		"a key has padding": {
			want: []string{"MapsyncWarning unsent-entries", "MapsyncWarning peer-unsent-entries", "MapsyncCritical redundancy"},
			begin: func() {
				c.n1.applyEntries(c.padded, 1, func(int) (key, value []byte) { return []byte{1, 0, 0, 0, 2, 0, 3, 4}, []byte{1, 0, 0, 0} })
			},
			end: func() {
				c.n1.applyEntries(c.padded, 1, func(int) (key, value []byte) { return []byte{1, 0, 0, 0, 2, 0, 3, 4}, nil })
			},
		},
		"events are lost repeatedly": {
			want:    []string{"MapsyncWarning losses-open"},
			allowed: problems("divergent", "peer-behind", "redundancy"),
			begin: again(func(v uint64) {
				c.n2.write(c.ct2, 0, 1000, v)
				time.Sleep(20 * time.Millisecond) // the rate of the changes
			}),
			end: func() { stop() },
		},
		"a certificate expires within a week": {
			want: []string{"MapsyncWarning tls-files"},
			begin: func() {
				c.certify(testcert.Options{NotBefore: time.Now().Add(-24 * 24 * time.Hour), NotAfter: time.Now().Add(6 * 24 * time.Hour)})
			},
			end: func() { c.certify(aMonth()) },
		},
		"a certificate expires within a day": {
			want: []string{"MapsyncWarning tls-files", "MapsyncCertificateExpiring"},
			begin: func() {
				c.certify(testcert.Options{NotBefore: time.Now().Add(-9 * 24 * time.Hour), NotAfter: time.Now().Add(20 * time.Hour)})
			},
			end: func() { c.certify(aMonth()) },
		},
		"a certificate is valid for a day": {
			begin: func() { c.certify(testcert.Options{NotAfter: time.Now().Add(24 * time.Hour)}) },
			end:   func() { c.certify(aMonth()) },
		},
		"a revocation list is expired": {
			want:  []string{"MapsyncWarning tls-files"},
			begin: func() { c.revoke(time.Now().Add(-time.Minute)) },
			end:   func() { c.revoke(time.Now().Add(time.Hour)) },
		},
		"the state directory is read-only": {
			want:  []string{"MapsyncWarning state-not-saved"},
			begin: func() { c.remountState(unix.MS_RDONLY) },
			end:   func() { c.remountState(0) },
		},
		"settings are refused": {
			want: []string{"MapsyncWarning settings-not-reloaded"},
			begin: func() {
				next := c.n1.config
				next.Attach = "magic"
				if _, err := c.n1.reload(next); err == nil {
					c.t.Error("reload invalid settings: got no error, want one")
				}
			},
			end: func() { c.reload(c.n1, func(*config.Config) {}) },
		},
	}
}

// problems returns the names of the alerts about problems. An alert has the severity of the problem, which a test need not name.
func problems(ids ...string) (names []string) {
	for _, id := range ids {
		names = append(names, "MapsyncCritical "+id, "MapsyncWarning "+id)
	}
	return names
}
