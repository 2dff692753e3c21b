package daemon_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mapsync/internal/poll"
	"mapsync/internal/testcert"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// namespaceVariable marks a process that has its own network namespace.
const namespaceVariable = "MAPSYNC_TEST_NETWORK"

// inOwnNetwork runs the test again in a process with its own network namespace, whose loopback
// interface has only these addresses. It returns false in the process that started it.
func inOwnNetwork(t *testing.T, addresses ...string) bool {
	t.Helper()
	if os.Getenv(namespaceVariable) == "" {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), namespaceVariable+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("test in its own network namespace: %v\n%s", err, out)
		}
		return false
	}
	link, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	own, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	for i := range own {
		if err := netlink.AddrDel(link, &own[i]); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range addresses {
		a, err := netlink.ParseAddr(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.AddrAdd(link, a); err != nil {
			t.Fatal(err)
		}
	}
	return true
}

// secureNodes creates count nodes, each with a pinned map, a certificate and a gossip key.
func secureNodes(t *testing.T, count int) (nodes []*node, maps []*ebpf.Map) {
	t.Helper()
	ca, err := testcert.NewCA(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	dir := pinDir(t)
	for i := 1; i <= count; i++ {
		pin := filepath.Join(dir, fmt.Sprint("ct", i))
		maps = append(maps, pinned(t, pin, 8, 8, 1000))
		n := newNode(t, i, "ct="+pin)
		n.secure(ca, testcert.Options{}, 1)
		nodes = append(nodes, n)
	}
	return nodes, maps
}

// replicates starts the nodes. Each of them writes entries, and all maps must hold all entries.
func replicates(t *testing.T, nodes []*node, maps []*ebpf.Map) {
	t.Helper()
	for _, n := range nodes {
		n.start()
	}
	poll.Eventually(t, "all nodes are ready", func() bool {
		for _, n := range nodes {
			if s := n.status(); !s.Ready || len(s.Peers) != len(nodes)-1 {
				return false
			}
		}
		return true
	})
	for i, n := range nodes {
		n.write(maps[i], uint64(100*i), uint64(100*i+100), 7)
	}
	poll.Eventually(t, "all maps hold all entries", func() bool {
		for _, m := range maps {
			if !holds(t, m, 100*len(nodes), 7) {
				return false
			}
		}
		return true
	})
	for _, n := range nodes {
		if !strings.Contains(n.metrics(), "mapsync_ready 1") {
			t.Errorf("metrics of %s: want mapsync_ready 1", n.config.NodeName)
		}
	}
}

func TestIPv6OnlyCluster(t *testing.T) {
	if !inOwnNetwork(t, "::1/128", "fd00::1/64", "fd00::2/64", "fd00::3/64") {
		return
	}
	nodes, maps := secureNodes(t, 3)
	for i, n := range nodes {
		address := fmt.Sprintf("[fd00::%d]", i+1)
		n.config.GossipListen, n.config.GRPCListen, n.config.MetricsListen = address+":7946", address+":7947", address+":9746"
		n.config.Join = []string{"[fd00::1]:7946", "[fd00:0::2]:7946"}
	}
	replicates(t, nodes, maps)
	for _, p := range nodes[0].status().Peers {
		if want := fmt.Sprintf("[fd00::%s]:7947", strings.TrimPrefix(p.Node, "n")); p.Address != want {
			t.Errorf("address of %s: got %s, want %s", p.Node, p.Address, want)
		}
	}
	nodes[1].stop()
	poll.Eventually(t, "the stopped peer has left", func() bool { return strings.Contains(nodes[0].metrics(), "mapsync_gossip_members 1") })
	nodes[1].start()
	poll.Eventually(t, "the peer has returned", func() bool { return nodes[1].status().Ready && len(nodes[0].status().Peers) == 2 })
}

// Nodes that listen on all addresses of both families can advertise an address of either family.
func TestDualStackCluster(t *testing.T) {
	if !inOwnNetwork(t, "127.0.0.1/8", "::1/128", "fd00::1/64", "10.9.0.1/24", "fd00::2/64", "10.9.0.2/24", "fd00::3/64", "10.9.0.3/24") {
		return
	}
	nodes, maps := secureNodes(t, 3)
	for i, n := range nodes {
		port := 10000 * (i + 1) // the wildcard listeners share one host
		listen := []string{"[::]", "", "[::]"}[i]
		address := []string{"[fd00::1]", "10.9.0.2", "[fd00::3]"}[i]
		n.config.GossipListen, n.config.GossipAdvertise = fmt.Sprintf("%s:%d", listen, port+1), fmt.Sprintf("%s:%d", address, port+1)
		n.config.GRPCListen, n.config.GRPCAdvertise = fmt.Sprintf("%s:%d", listen, port+2), fmt.Sprintf("%s:%d", address, port+2)
		n.config.MetricsListen = fmt.Sprintf("%s:%d", address, port+3)
		// Addresses of the family that the node does not advertise.
		n.config.Join = []string{"10.9.0.1:10001", "[fd00::2]:20001"}
	}
	replicates(t, nodes, maps)
}
