package daemon_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/internal/testcert"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/events"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// statusOfAll returns the statuses of all nodes that answer, and the errors of the others.
func (n *node) statusOfAll() (statuses map[string]daemon.Status, failed map[string]string) {
	n.t.Helper()
	a, err := n.client.ClusterStatus(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	statuses, failed = make(map[string]daemon.Status), make(map[string]string)
	for _, x := range a.Nodes {
		var s daemon.Status
		switch err := json.Unmarshal(x.Answer, &s); {
		case x.Error != "":
			failed[x.Node] = x.Error
		case err != nil || s.Node != x.Node:
			n.t.Errorf("status of %s: got that of %q, error %v, want its own", x.Node, s.Node, err)
		default:
			statuses[x.Node] = s
		}
	}
	return statuses, failed
}

// TestClusterStatus: each node answers for all, with certificates. A node that is lost has a reason, and events of all nodes are in one
// list.
func TestClusterStatus(t *testing.T) {
	nodes, _ := secureNodes(t, 3)
	for i, n := range nodes {
		n.config.ExpectedPeers = config.PeerList{"n1", "n2", "n3"}
		n.config.ExpectedPeers = slices.Delete(n.config.ExpectedPeers, i, i+1)
		n.start()
	}
	for _, n := range nodes {
		poll.Eventually(t, "all nodes are ready at "+n.config.NodeName, func() bool {
			s, failed := n.statusOfAll()
			return len(s) == 3 && len(failed) == 0 && s["n1"].Ready && s["n2"].Ready && s["n3"].Ready && s["n1"].Redundancy.Live == 2
		})
	}
	begin := time.Now()
	if _, err := nodes[1].client.Drain(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the drain of n2 shows at n3", func() bool { s, _ := nodes[2].statusOfAll(); return s["n2"].Drained && !s["n1"].Drained })
	if _, err := nodes[1].client.Undrain(t.Context()); err != nil {
		t.Fatal(err)
	}
	nodes[2].stop()
	poll.Eventually(t, "n3 is lost at n1", func() bool {
		s, failed := nodes[0].statusOfAll()
		return len(s) == 2 && strings.HasPrefix(failed["n3"], "lost ") && len(s["n1"].Problems) > 0
	}, func() any { _, failed := nodes[0].statusOfAll(); return failed })

	a, err := nodes[0].client.ClusterEvents(t.Context(), begin, 1000)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, x := range a.Nodes {
		var l events.List
		if x.Error != "" || json.Unmarshal(x.Answer, &l) != nil || !l.Complete {
			continue
		}
		for _, e := range l.Events {
			if e.Time.Before(begin) {
				t.Errorf("event %+v of %s: want only those since %s", e, x.Node, begin)
			}
			found = append(found, x.Node+" "+e.Level+" "+e.Message+" "+e.Peer)
		}
	}
	for _, want := range []string{"n1 info peer left or died n3", "n2 info peer left or died n3"} {
		if !slices.ContainsFunc(found, func(s string) bool { return strings.HasPrefix(s, want) }) {
			t.Errorf("events of all nodes: want %q in\n%s", want, strings.Join(found, "\n"))
		}
	}
}

// TestEventsAtAnyLogLevel: a node that logs errors only has all events.
func TestEventsAtAnyLogLevel(t *testing.T) {
	n1, n2, _, _ := twoNodes(t, 100)
	begin := time.Now()
	startPair(t, n1, n2)
	l, err := n1.client.Events(t.Context(), begin, 1000)
	if err != nil || !l.Complete {
		t.Fatalf("events: got complete %t and error %v, want all", l.Complete, err)
	}
	for _, want := range []string{"map attached", "peer joined", "ready"} {
		if !slices.ContainsFunc(l.Events, func(e events.Event) bool { return e.Message == want }) {
			t.Errorf("events of the start: got %+v, want one with %q", l.Events, want)
		}
	}
	few, err := n1.client.Events(t.Context(), begin, 1)
	if err != nil || few.Complete || len(few.Events) != 1 {
		t.Errorf("events with a limit: got %+v and error %v, want one, not complete", few, err)
	}
}

// TestOnlyNodesMayAsk: a caller without the certificate of a node gets no answer, and questions have limits.
func TestOnlyNodesMayAsk(t *testing.T) {
	n1, n2, _, _ := twoNodes(t, 100)
	ca, err := testcert.NewCA(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []*node{n1, n2} {
		n.secure(ca, testcert.Options{}, 1)
		n.config.Observers = []string{"observer"}
	}
	startPair(t, n1, n2)
	ask := func(name, as, path string) error {
		t.Helper()
		pair, err := ca.Issue(name, testcert.Options{})
		if err != nil {
			t.Fatal(err)
		}
		cert, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		pem, err := os.ReadFile(ca.CertFile)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		conn, err := grpc.NewClient("passthrough:///"+n1.config.GRPCListen,
			grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots, ServerName: "n1", MinVersion: tls.VersionTLS13})))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, err = mapsyncv1.NewInspectionServiceClient(conn).Inspect(t.Context(), &mapsyncv1.InspectRequest{Node: as, Path: path})
		return err
	}
	for name, c := range map[string]struct {
		cert, as, path string
		want           codes.Code
	}{
		"a node":          {"n2", "n2", "/status", codes.OK},
		"another node":    {"n2", "n1", "/status", codes.PermissionDenied},
		"an observer":     {"observer", "observer", "/status", codes.PermissionDenied},
		"no name":         {"n2", "", "/status", codes.InvalidArgument},
		"a change":        {"n2", "n2", "/drain", codes.Unimplemented},
		"entries":         {"n2", "n2", "/dump/ct", codes.Unimplemented},
		"no path":         {"n2", "n2", "status", codes.InvalidArgument},
		"a bad path":      {"n2", "n2", "/%zz", codes.InvalidArgument},
		"a long path":     {"n2", "n2", "/" + strings.Repeat("x", 33<<10), codes.InvalidArgument},
		"wrong arguments": {"n2", "n2", "/events?since=yesterday", codes.FailedPrecondition},
	} {
		if err := ask(c.cert, c.as, c.path); status.Code(err) != c.want {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
	if s := n1.status(); s.Drained {
		t.Error("drain by a question: got a drained node, want none")
	}
}
