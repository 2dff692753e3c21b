package peers

import (
	"fmt"
	"net"
	"testing"

	"mapsync/internal/poll"
)

func inCluster(name string) func(*Options) { return func(o *Options) { o.Cluster = name } }

// TestClustersDoNotMerge: nodes of clusters with different names are not members, with equal keys and without keys. A node without
// a name joins only nodes without one. Both sides count the rejected gossip, and one of them logs both names.
func TestClustersDoNotMerge(t *testing.T) {
	t.Parallel()
	for _, key := range []func(*Options){keys(keyOne), keys()} {
		for _, names := range [][2]string{{"prod", "staging"}, {"", "prod"}, {"prod", ""}, {"prod", "pro"}} {
			t.Run(fmt.Sprintf("%s joins %s", names[0], names[1]), func(t *testing.T) {
				t.Parallel()
				b := start(t, "b", key, inCluster(names[1]))
				a := start(t, "a", key, inCluster(names[0]), joining(b))
				poll.Eventually(t, "the joined node rejects the other one", func() bool { return b.Stats().Rejected[RejectCluster] > 0 && a.JoinError() != nil })
				if b.logs.count("level=WARN", "gossip of another cluster rejected", "problem=cluster-differs", fmt.Sprintf("%q there, and %q here", names[0], names[1])) == 0 &&
					b.logs.count("level=WARN", "gossip of another cluster rejected", "problem=cluster-differs", fmt.Sprintf(`\"%s\" there, and \"%s\" here`, names[0], names[1])) == 0 {
					t.Errorf("log: want both names:\n%s", b.logs.String())
				}
				if b.logs.count("gossip warning") != 0 {
					t.Errorf("log: want no other warning:\n%s", b.logs.String())
				}
				if len(a.Members())+len(b.Members()) != 0 {
					t.Error("nodes of different clusters: got members, want none")
				}
			})
		}
	}
}

// TestNodesOfOneCluster: nodes with the same name are members, and detect the end of each other.
func TestNodesOfOneCluster(t *testing.T) {
	t.Parallel()
	for _, key := range []func(*Options){keys(keyOne), keys()} {
		b := start(t, "b", key, inCluster("prod"))
		a := start(t, "a", key, inCluster("prod"), joining(b))
		poll.Eventually(t, "the nodes see each other", func() bool { return a.sees(b) && b.sees(a) })
		b.kill(t)
		poll.Eventually(t, "the dead node is detected", func() bool { return a.sees() })
		if n := a.Stats().Rejected; n[RejectCluster]+n[RejectEncoding] != 0 {
			t.Errorf("rejected gossip: got %v, want none", n)
		}
	}
}

// TestInvalidLabels: a node rejects datagrams and streams with an invalid label, and goes on.
func TestInvalidLabels(t *testing.T) {
	t.Parallel()
	a := start(t, "a", inCluster("prod"))
	for i, b := range [][]byte{{labelHead}, {labelHead, 0}, {labelHead, 9, 'p'}, {labelHead, 0, 'x'}} {
		before := a.Stats().Rejected
		conn, err := net.Dial("udp", a.GossipAddr())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		poll.Eventually(t, fmt.Sprintf("datagram %d is rejected", i), func() bool { return a.Stats().Rejected[RejectEncoding] > before[RejectEncoding] })
	}
	before := a.Stats().Rejected[RejectEncoding]
	conn, err := net.Dial("tcp", a.GossipAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte{labelHead, 0, 'x'}); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the stream is rejected", func() bool { return a.Stats().Rejected[RejectEncoding] > before })
	b := start(t, "b", inCluster("prod"), joining(a))
	poll.Eventually(t, "another node joins", func() bool { return a.sees(b) && b.sees(a) })
}
