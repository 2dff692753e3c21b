package replicate

import (
	"errors"
	"math"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// TestProtocolVersionIsNegotiated checks the chosen version for ranges of both nodes. Without a common
// version, it checks the error and the node to upgrade. A peer without a highest version supports one
// version.
func TestProtocolVersionIsNegotiated(t *testing.T) {
	const highest = math.MaxUint32
	const upgradeSelf, upgradePeer = `(upgrade syncd on "b")`, `(upgrade syncd on "x")`
	for _, c := range []struct {
		self versionRange
		// lowest and highest are the fields of the peer's Hello.
		lowest, highest uint32
		want            uint32
		err             error
		text            string
	}{
		{versionRange{1, 1}, 1, 0, 1, nil, ""},
		{versionRange{1, 1}, 1, 1, 1, nil, ""},
		{versionRange{1, 1}, 1, 2, 1, nil, ""},
		{versionRange{1, 2}, 1, 0, 1, nil, ""},
		{versionRange{1, 2}, 1, 1, 1, nil, ""},
		{versionRange{1, 2}, 1, 2, 2, nil, ""},
		{versionRange{1, 2}, 2, 0, 2, nil, ""},
		{versionRange{1, 2}, 2, 3, 2, nil, ""},
		{versionRange{2, 3}, 1, 2, 2, nil, ""},
		{versionRange{2, 5}, 3, 4, 4, nil, ""},
		{versionRange{3, 4}, 2, 5, 4, nil, ""},
		{versionRange{1, 1}, 1, highest, 1, nil, ""},
		{versionRange{1, highest}, highest, 0, highest, nil, ""},

		{versionRange{1, 1}, 2, 3, 0, errVersions, `negotiate with "x": it supports protocol versions 2 to 3, "b" supports version 1: no common protocol version ` + upgradeSelf},
		{versionRange{2, 3}, 1, 0, 0, errVersions, `negotiate with "x": it supports protocol version 1, "b" supports versions 2 to 3: no common protocol version ` + upgradePeer},
		{versionRange{2, 2}, 1, 1, 0, errVersions, upgradePeer},
		{versionRange{4, 5}, 1, 3, 0, errVersions, upgradePeer},
		{versionRange{1, 3}, 4, 5, 0, errVersions, upgradeSelf},
		{versionRange{1, 1}, highest, 0, 0, errVersions, upgradeSelf},
		{versionRange{1, 1}, highest, highest, 0, errVersions, upgradeSelf},

		{versionRange{1, 1}, 0, 0, 0, errNoRange, "protocol versions 0 to 0"},
		{versionRange{1, 1}, 0, 1, 0, errNoRange, "protocol versions 0 to 1"},
		{versionRange{1, 1}, 2, 1, 0, errNoRange, "protocol versions 2 to 1"},
		{versionRange{1, 3}, 3, 2, 0, errNoRange, "protocol versions 3 to 2"},
		{versionRange{1, 1}, highest, 1, 0, errNoRange, "protocol versions 4294967295 to 1"},
	} {
		peer := offered(&mapsyncv1.Hello{ProtocolVersion: c.lowest, MaxProtocolVersion: c.highest})
		got, err := c.self.choose("b", "x", peer)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("choose of %+v with a peer of %d to %d: got %d, %v, want %d, %v", c.self, c.lowest, c.highest, got, err, c.want, c.err)
		}
		if c.err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("choose of %+v with a peer of %d to %d: got error %q, want %q in it", c.self, c.lowest, c.highest, err, c.text)
		}
	}
	long := strings.Repeat("\x00", 100_000)
	if _, err := (versionRange{1, 1}).choose("b", long, versionRange{2, 2}); len(err.Error()) > 2000 {
		t.Errorf("error about a peer with a long name: got %d bytes, want at most 2000", len(err.Error()))
	}
}

// TestSupportedVersions checks that this release supports version 2, the only one of the previous release.
func TestSupportedVersions(t *testing.T) {
	if v := supportedVersions; v.lowest != 2 || v.highest < v.lowest {
		t.Errorf("supported versions: got %+v, want them to begin with 2", v)
	}
}

// TestReplicationWithNegotiatedVersion checks that two nodes with overlapping ranges replicate with
// the highest version that both support.
func TestReplicationWithNegotiatedVersion(t *testing.T) {
	for name, c := range map[string]struct {
		a, b versionRange
		want uint32
	}{
		"both old":              {versionRange{1, 1}, versionRange{1, 1}, 1},
		"one new":               {versionRange{1, 2}, versionRange{1, 1}, 1},
		"both new":              {versionRange{1, 2}, versionRange{1, 2}, 2},
		"one without version 1": {versionRange{2, 3}, versionRange{1, 2}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			a := startNode(t, "a", 1, nil, func(o *Options) { o.versions = c.a })
			b := startNode(t, "b", 2, nil, func(o *Options) { o.versions = c.b })
			a.put(0, 10, 1)
			b.put(100, 110, 2)
			connectNodes(a, b)
			poll.Within(t, deadline, "both nodes hold all records", func() bool { return len(live(a.tb)) == 20 && len(live(b.tb)) == 20 })
			_, pb := a.status("b", testMap)
			_, pa := b.status("a", testMap)
			if pa.ProtocolVersion != c.want || pb.ProtocolVersion != c.want {
				t.Errorf("protocol version: got %d and %d, want %d", pa.ProtocolVersion, pb.ProtocolVersion, c.want)
			}
		})
	}
}

// TestNodesWithoutCommonVersion checks that nodes without a common version of the protocol refuse
// each other, and that status and counters of both show it with the remedy.
func TestNodesWithoutCommonVersion(t *testing.T) {
	a := startNode(t, "a", 1, nil, func(o *Options) { o.versions = versionRange{1, 1} })
	b := startNode(t, "b", 2, nil, func(o *Options) { o.versions = versionRange{2, 3} })
	a.put(0, 10, 1)
	b.put(100, 110, 2)
	connectNodes(a, b)
	for _, n := range []struct {
		*node
		peer string
	}{{a, "b"}, {b, "a"}} {
		poll.Within(t, deadline, "the refusal is shown and counted", func() bool {
			_, p := n.status(n.peer, testMap)
			return strings.Contains(p.Error, "no common protocol version") && strings.Contains(p.Error, `upgrade syncd on \"a\"`) &&
				p.ProtocolVersion == 0 && n.r.Stats().BadRequests > 0 && n.r.Stats().ConnectErrors > 0
		})
	}
	// A node that only gossip has named is listed as unverified, with the remedy.
	n := startNode(t, "c", 3, nil, func(o *Options) { o.versions = versionRange{1, 1} })
	n.r.Discover([]Peer{b.peer()})
	poll.Within(t, deadline, "the node is listed as unverified", func() bool {
		all := n.r.Unverified(10)
		return len(all) == 1 && strings.Contains(all[0].Error, `upgrade syncd on \"c\"`)
	})
	if len(live(a.tb)) != 10 || len(live(b.tb)) != 10 {
		t.Errorf("records: got %d and %d, want 10 each", len(live(a.tb)), len(live(b.tb)))
	}
}

// TestHostileVersionsAreRefused opens streams with invalid ranges and with unsupported versions. The
// node counts each of them and continues to serve.
func TestHostileVersionsAreRefused(t *testing.T) {
	a := startNode(t, "a", 1, nil)
	all := []struct {
		lowest, highest uint32
		code            codes.Code
	}{
		{0, 0, codes.InvalidArgument},
		{0, 1, codes.InvalidArgument},
		{2, 1, codes.InvalidArgument},
		{math.MaxUint32, 1, codes.InvalidArgument},
		{math.MaxUint32, 0, codes.FailedPrecondition},
		{math.MaxUint32, math.MaxUint32, codes.FailedPrecondition},
	}
	for _, c := range all {
		stream := stockClient(t, a)
		m := hello("y")
		m.GetHello().ProtocolVersion, m.GetHello().MaxProtocolVersion = c.lowest, c.highest
		send(t, stream, m)
		if err := streamError(stream); status.Code(err) != c.code {
			t.Errorf("versions %d to %d: got %v, want %s", c.lowest, c.highest, err, c.code)
		}
	}
	poll.Within(t, deadline, "each request is counted once", func() bool { return a.r.Stats().BadRequests == uint64(len(all)) })
	stream := stockClient(t, a)
	m := hello("y")
	m.GetHello().MaxProtocolVersion = math.MaxUint32
	send(t, stream, m)
	if r, err := stream.Recv(); err != nil || r.GetWelcome().GetProtocolVersion() != supportedVersions.highest {
		t.Errorf("versions %d to 2^32-1: got %v, %v, want a welcome of the highest version", m.GetHello().GetProtocolVersion(), r, err)
	}
}
