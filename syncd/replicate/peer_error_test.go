package replicate

import (
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// TestErrorOfStreamIsBounded: the text with which a peer ends a stream is short and quoted in the status, in
// the log and in the error of a proof. The status code stays.
func TestErrorOfStreamIsBounded(t *testing.T) {
	for name, text := range map[string]string{
		"short":             strings.Repeat("x\x1b[2J", 500),
		"beyond the header": strings.Repeat("x\x1b[2J", 1<<18),
		"4-byte characters": strings.Repeat("\U0010ffff", 1500),
	} {
		x := startStock(t, func(mapsyncv1.ReplicationService_SubscribeServer) error { return status.Error(codes.Aborted, text) })
		n := startNode(t, "a", 1, nil)
		l := newLink(n.r, x)
		err := l.connect(t.Context())
		l.down(err)
		_, proof := n.r.dialForProof(t.Context(), x)
		if name == "short" && (status.Code(err) != codes.Aborted || status.Code(proof) != codes.Aborted) {
			t.Errorf("%s: status %s, proof %s", name, status.Code(err), status.Code(proof))
		}
		if err == nil || proof == nil {
			t.Fatalf("%s: %v, %v", name, err, proof)
		}
		for what, got := range map[string]string{"status": l.status(n.r.localMaps()).Error, "error": err.Error(), "proof": proof.Error()} {
			if len(got) > 12<<10 || strings.ContainsAny(got, "\x1b\U0010ffff") {
				t.Errorf("%s: the %s has %d bytes: %.60q", name, what, len(got), got)
			}
		}
	}
}

// TestErrorsThatAreNotOfAPeer stay as they are.
func TestErrorsThatAreNotOfAPeer(t *testing.T) {
	for _, err := range []error{nil, io.EOF, errSilent, errRefusedHere} {
		if got := peerError(err); !errors.Is(got, err) {
			t.Errorf("%v becomes %v", err, got)
		}
	}
	if got := peerError(status.Error(codes.Unavailable, `a "b"`)); status.Code(got) != codes.Unavailable || status.Convert(got).Message() != `"a \"b\""` {
		t.Errorf("%v", got)
	}
}

// TestLongNameInAWelcome: an error has at most the 255 bytes that a name may have.
func TestLongNameInAWelcome(t *testing.T) {
	x := startStock(t, func(stream mapsyncv1.ReplicationService_SubscribeServer) error {
		return welcomeWith(stream, &mapsyncv1.Welcome{ProtocolVersion: 1, Self: &mapsyncv1.Incarnation{Node: strings.Repeat("x", 1<<16)}})
	})
	n := startNode(t, "a", 1, nil)
	_, proof := n.r.dialForProof(t.Context(), x)
	for _, err := range []error{newLink(n.r, x).connect(t.Context()), proof} {
		if err == nil || !strings.Contains(err.Error(), "expected") || len(err.Error()) > 1<<10 {
			t.Errorf("%.80v", err)
		}
	}
}
