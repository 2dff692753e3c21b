package daemon_test

import (
	"bytes"
	"encoding/base64"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/internal/testcert"
	"mapsync/syncd/capture"
	"mapsync/syncd/daemon"
	"mapsync/syncd/problem"
)

// secure gives n a certificate of the CA, and a gossip key whose bytes are all k.
func (n *node) secure(ca *testcert.CA, options testcert.Options, k byte) {
	n.t.Helper()
	pair, err := ca.Issue(n.config.NodeName, options)
	if err != nil {
		n.t.Fatal(err)
	}
	n.config.TLSCert, n.config.TLSKey, n.config.TLSCA = pair.CertFile, pair.KeyFile, ca.CertFile
	n.config.GossipKeyFile = filepath.Join(n.dir, "gossip.key")
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{k}, 32))
	if err := os.WriteFile(n.config.GossipKeyFile, []byte("# a comment\n"+key+"\n"), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func TestRefusalsNameTheCause(t *testing.T) {
	newCA := func(name string) *testcert.CA {
		ca, err := testcert.NewCA(t.TempDir(), name)
		if err != nil {
			t.Fatal(err)
		}
		return ca
	}
	good, other := newCA("good"), newCA("other")
	expired := testcert.Options{NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-24 * time.Hour)}
	for name, c := range map[string]struct {
		second func(n *node)
		want   string // expected in the first node's log
	}{
		"plain": {func(n *node) {
			n.secure(good, testcert.Options{}, 1)
			n.config.TLSCert, n.config.TLSKey, n.config.TLSCA = "", "", ""
		}, "reason=plain"},
		"wrong CA":   {func(n *node) { n.secure(other, testcert.Options{}, 1) }, "reason=unknown_ca"},
		"gossip key": {func(n *node) { n.secure(good, testcert.Options{}, 2) }, "gossip key differs"},
		"valid":      {func(n *node) { n.secure(good, testcert.Options{}, 1) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n1, n2 := newNode(t, 1, "ct"), newNode(t, 2, "ct")
			n1.secure(good, testcert.Options{}, 1)
			c.second(n2)
			n1.start()
			n2.start()
			if c.want == "" {
				poll.Eventually(t, "the streams in both directions are up", func() bool { s := n1.status(); return len(s.Peers) == 1 && s.Peers[0].Receiving && s.Peers[0].Sending })
				return
			}
			poll.Eventually(t, "the refusal names the cause", func() bool { return n1.log.contains(c.want) })
			if name == "gossip key" {
				n1.shows("gossip-key-differs", problem.Critical, c.want)
			}
			if s := n1.status(); len(s.Peers) == 1 && (s.Peers[0].Receiving || s.Peers[0].Sending) {
				t.Errorf("streams: got %+v, want none", s.Peers)
			}
		})
	}
	for name, o := range map[string]testcert.Options{"expired": expired, "n1": {DNSNames: []string{"somebody"}}} {
		n := newNode(t, 1, "ct")
		n.secure(good, o, 1)
		_, err := daemon.New(daemon.Options{Config: n.config, Logger: slog.New(slog.DiscardHandler), OpenCapture: func(o capture.Options) (*capture.Capture, error) {
			o.Attach = capture.AttachNone
			return capture.Open(o)
		}})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("start with a certificate that peers refuse (%s): got error %v, want one", name, err)
		}
	}
}
