package daemon_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/config"
	"mapsync/syncd/problem"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// shows waits until the node has a problem, and checks that the status, the metric, the readiness page and the log show it.
func (n *node) shows(id string, severity problem.Severity, parts ...string) (found problem.Problem) {
	n.t.Helper()
	poll.Eventually(n.t, fmt.Sprintf("%s has the problem %s with %q", n.config.NodeName, id, parts), func() bool {
		list := n.status().Problems
		i := slices.IndexFunc(list, func(p problem.Problem) bool {
			missing := slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(p.Text, part) })
			return p.ID == id && p.Severity == severity && !missing
		})
		if i >= 0 {
			found = list[i]
		}
		return i >= 0
	}, func() any { return n.status().Problems })
	if found.Remedy == "" || found.Documentation != "docs/night.md#"+id || time.Since(found.Since) < 0 {
		n.t.Errorf("problem: got %+v, want a remedy, the time of its beginning and a section of docs/night.md", found)
	}
	label := ""
	if n.config.Cluster != "" {
		label = `cluster="` + n.config.Cluster + `",`
	}
	if v := n.sample("mapsync_problem", fmt.Sprintf(`{%sid=%q,severity=%q}`, label, id, severity)); v == "0" || v == "absent" {
		n.t.Errorf("mapsync_problem: got %s, want a problem %s", v, id)
	}
	if _, body := n.get("/readyz?verbose"); !strings.Contains(body, string(severity)+" "+id) {
		n.t.Errorf("readyz: want the problem %s in\n%s", id, body)
	}
	return found
}

// ends waits until the node has no problem with an id, and checks that the log has its end.
func (n *node) ends(id string) {
	n.t.Helper()
	poll.Eventually(n.t, "the problem "+id+" ends", func() bool { return n.problemOf(id) == nil }, func() any { return n.status().Problems })
}

// began waits until the log has the beginning of a problem.
func (n *node) began(id string) {
	n.t.Helper()
	poll.Eventually(n.t, "the log has the problem "+id, func() bool { return n.log.contains(`msg="problem began" id=` + id) })
}

// TestUnreachablePeerIsAProblem: the peer advertises an address at which nothing listens. Its streams cannot be verified.
func TestUnreachablePeerIsAProblem(t *testing.T) {
	n1, n2, _, _ := twoNodes(t, 100)
	n2.config.GRPCAdvertise = loopback(9) + ":7947"
	n1.config.ExpectedPeers = config.PeerList{"n2"}
	n1.start()
	n2.start()
	p := n1.shows("peer-unreachable", problem.Critical, loopback(9), "connection refused")
	if p.Peer != "n2" || !strings.Contains(p.Remedy, "on n2: correct grpc-advertise") {
		t.Errorf("problem: got %+v, want the peer and its remedy", p)
	}
	n1.shows("redundancy", problem.Critical, "0/1", "n2")
	n1.began("peer-unreachable")
	n2.stop()
	n2.config.GRPCAdvertise = ""
	n2.start()
	n1.ends("peer-unreachable")
	n1.ends("redundancy")
}

// TestUnreachableGossipIsAProblem: no node of join answers, and then one does.
func TestUnreachableGossipIsAProblem(t *testing.T) {
	n1, n2, _, _ := twoNodes(t, 100)
	n1.config.Join = []string{n2.config.GossipListen}
	n1.start()
	n1.shows("gossip-unreachable", problem.Critical)
	n2.start()
	n1.ends("gossip-unreachable")
	n1.stop()
	n2.stop()
	n1.config.Join, n1.config.ExpectedPeers = []string{n1.config.GossipListen}, config.PeerList{"n2"}
	n1.start()
	n1.shows("gossip-unreachable", problem.Critical, "no address in join has led to another node")
	n2.start()
	n1.ends("gossip-unreachable")
}

// TestForeignGossipIsAProblem: another program sends to the port of gossip.
func TestForeignGossipIsAProblem(t *testing.T) {
	n, _, _, _ := twoNodes(t, 100)
	n.config.Join = []string{loopback(9) + ":7946"} // nothing listens there
	n.start()
	conn, err := net.Dial("udp", n.config.GossipListen)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	poll.Eventually(t, "the datagram is noticed", func() bool {
		_, _ = conn.Write([]byte("GET / HTTP/1.0\r\n\r\n"))
		return n.problemOf("gossip-invalid") != nil
	})
	n.shows("gossip-invalid", problem.Warning)
}

// TestRefusedStreamIsAProblem: a program requests a stream as no node does.
func TestRefusedStreamIsAProblem(t *testing.T) {
	n, _, _, _ := twoNodes(t, 100)
	n.start()
	conn, err := grpc.NewClient(n.config.GRPCListen, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := mapsyncv1.NewReplicationServiceClient(conn).Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Hello{Hello: &mapsyncv1.Hello{}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err == nil {
		t.Error("stream without a name: got a message, want it refused")
	}
	n.shows("stream-refused", problem.Warning, "stream refused")
}

// TestNameConflictIsAProblem: a node uses the name of another one.
func TestNameConflictIsAProblem(t *testing.T) {
	n1, n2, _, _ := twoNodes(t, 100)
	startPair(t, n1, n2)
	n3 := newNode(t, 3, n2.config.Maps...)
	n3.config.NodeName = "n2"
	n3.start()
	p := n1.shows("name-conflict", problem.Critical, "two live nodes have the same name")
	if p.Subject != "n2" {
		t.Errorf("problem: got subject %q, want the name n2", p.Subject)
	}
}

// TestFullStateDirectoryIsAProblem: the state file cannot be written, and then it can.
func TestFullStateDirectoryIsAProblem(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatalf("mount a file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	n1, _, _, _ := twoNodes(t, 100)
	n1.config.Join = nil
	n1.config.StateDir = dir
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, bytes.Repeat([]byte{1}, 60<<10), 0o600); err != nil {
		t.Logf("fill the file system: %v", err) // a part is enough
	}
	n1.start()
	p := n1.shows("state-not-saved", problem.Warning, "no space left on device")
	if p.Remedy != "df "+dir {
		t.Errorf("remedy: got %q, want df of the directory", p.Remedy)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	n1.ends("state-not-saved")
}

// TestDamagedStateIsAProblem: the state file is damaged while syncd is stopped. The next start has another one.
func TestDamagedStateIsAProblem(t *testing.T) {
	n, _, _, _ := twoNodes(t, 100)
	n.config.Join = nil
	restart := func() {
		n.start()
		poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	}
	restart()
	n.stop()
	file := filepath.Join(n.config.StateDir, "n1.state.json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(text, 'x'), 0o600); err != nil {
		t.Fatal(err)
	}
	restart()
	if p := n.shows("state-not-read", problem.Warning, "damaged file"); p.Subject != n.config.StateDir {
		t.Errorf("problem: got %+v, want the directory", p)
	}
	n.stop()
	restart()
	n.ends("state-not-read")
}

// TestMissingMapIsAProblem: the reason names the path and what is missing there: the map, or the BPF file system.
func TestMissingMapIsAProblem(t *testing.T) {
	plain := t.TempDir()
	dir := pinDir(t)
	n := newNode(t, 1, "nodir="+filepath.Join(dir, "absent", "ct"), "nodirfs="+filepath.Join(plain, "absent", "ct"), "nofs="+filepath.Join(plain, "ct"), "nopin="+filepath.Join(dir, "ct"), "noname=name:no_such_map")
	n.config.Join = nil
	n.start()
	n.shows("map-missing", problem.Critical)
	if p := n.shows("bpf-file-system", problem.Critical, plain+" is not in a BPF file system"); !strings.Contains(p.Remedy, "mount -t bpf") {
		t.Errorf("remedy: got %q, want the command that mounts it", p.Remedy)
	}
	want := map[string]string{
		"nodir":   filepath.Join(dir, "absent") + " does not exist",
		"nodirfs": plain + " is not in a BPF file system",
		"nofs":    plain + " is not in a BPF file system",
		"nopin":   "no map is pinned at " + filepath.Join(dir, "ct"),
		"noname":  `no map has the name "no_such_map"`,
	}
	for _, p := range n.status().Problems {
		if p.ID == "map-missing" || p.ID == "bpf-file-system" {
			if noFS := strings.HasSuffix(p.Map, "fs"); noFS != (p.ID == "bpf-file-system") {
				t.Errorf("map %s: got the problem %s, want the one of the file system %t", p.Map, p.ID, noFS)
			}
			if !strings.Contains(p.Text, want[p.Map]) {
				t.Errorf("map %s: got %q, want %q", p.Map, p.Text, want[p.Map])
			}
			delete(want, p.Map)
		}
	}
	if len(want) > 0 {
		t.Errorf("maps without the problem: %v", want)
	}
	if err := unix.Mount("none", plain, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(plain, unix.MNT_DETACH) })
	n.ends("bpf-file-system")
	pinned(t, filepath.Join(dir, "ct"), 8, 8, 10)
	poll.Eventually(t, "the problem of the map ends", func() bool {
		for _, p := range n.status().Problems {
			if p.ID == "map-missing" && p.Map == "nopin" {
				return false
			}
		}
		return true
	})
}

// TestReloadProblems: settings that cannot be used, and settings that need a restart.
func TestReloadProblems(t *testing.T) {
	n, _, _, _ := twoNodes(t, 100)
	n.config.Join = nil
	n.start()
	good := n.config
	bad := good
	bad.ScanBudget = -1
	if _, err := n.reload(bad); err == nil {
		t.Fatal("reload of unusable settings: got no error, want one")
	}
	n.shows("settings-not-reloaded", problem.Warning, "scan-budget -1 is not usable")
	next := good
	next.ScanInterval = 7 * time.Second
	if _, err := n.reload(next); err != nil {
		t.Fatal(err)
	}
	n.ends("settings-not-reloaded")
	n.shows("restart-needed", problem.Warning, "scan-interval")
	if _, err := n.reload(good); err != nil {
		t.Fatal(err)
	}
	n.ends("restart-needed")
}

// TestDifferentMapsAreAProblem: maps of other sizes, types or flags, from the first contact on.
func TestDifferentMapsAreAProblem(t *testing.T) {
	for name, c := range map[string]struct {
		kind    ebpf.MapType
		typ     string
		entries uint32
		flags   uint32
	}{
		"size":  {ebpf.Hash, "hash", 50, 0},
		"type":  {ebpf.LRUHash, "lru_hash", 100, 0},
		"flags": {ebpf.Hash, "hash", 100, unix.BPF_F_NO_PREALLOC},
	} {
		t.Run(name, func(t *testing.T) {
			spec := mapSpec(c.kind, c.entries)
			spec.Flags = c.flags
			n1, n2, _, _ := pairOf(t, mapSpec(ebpf.Hash, 100), spec)
			p := n1.shows("map-differs", problem.Warning, "hash of 100 entries with flags 0x0 here", fmt.Sprintf("%s of %d entries with flags %#x on n2", c.typ, c.entries, c.flags))
			if p.Map != "ct" || p.Peer != "n2" {
				t.Errorf("problem: got %+v, want the map and the peer", p)
			}
			same := mapSpec(ebpf.Hash, 100)
			pinnedAs(t, n2.pin, &same)
			n1.ends("map-differs")
		})
	}
}

// TestProblemsBeginAndEnd: the log has the beginning and the end of a problem once.
func TestProblemsBeginAndEnd(t *testing.T) {
	n1, n2, _, _ := twoNodes(t, 100)
	startPair(t, n1, n2)
	n1.redundant()
	poll.Eventually(t, "healthy nodes have no problems", func() bool { return len(n1.status().Problems)+len(n2.status().Problems) == 0 })
	n1.drain()
	n1.shows("drained", problem.Notice, "drained since")
	n1.began("drained")
	if _, err := n1.client.Undrain(t.Context()); err != nil {
		t.Fatal(err)
	}
	n1.ends("drained")
	poll.Eventually(t, "the log has the end", func() bool { return n1.log.contains(`level=INFO msg="problem ended" id=drained seconds=`) })
	if a, b := n1.log.count(`msg="problem began" id=drained`), n1.log.count(`msg="problem ended" id=drained`); a != 1 || b != 1 {
		t.Errorf("log: got %d lines of the beginning and %d of the end, want 1 and 1", a, b)
	}
}

// TestOneDirectionIsAProblem: a peer cannot reach this node, and this node reaches the peer. Both sides have the problem.
func TestOneDirectionIsAProblem(t *testing.T) {
	n1, n2, _, _ := twoNodes(t, 100)
	n1.config.GRPCAdvertise = loopback(9) + ":7947"
	n1.config.ExpectedPeers = config.PeerList{"n2"}
	n1.start()
	n2.start()
	p := n1.shows("stream-missing", problem.Critical, "the peer does not receive from this node")
	if p.Peer != "n2" || !strings.Contains(p.Text, "grpc-advertise") || !strings.Contains(p.Remedy, "on n2: syncd status --problems") {
		t.Errorf("problem: got %+v, want the peer, the setting, and the node that has the error", p)
	}
	n1.shows("redundancy", problem.Critical, "0/1: n2 does not receive from this node")
	n2.shows("peer-unreachable", problem.Critical, loopback(9))
	n1.stop()
	n1.config.GRPCAdvertise = ""
	n1.start()
	n1.ends("stream-missing")
}
