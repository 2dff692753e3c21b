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

// TestPeerErrorIsBounded checks that the text with which a peer ends a stream is truncated and
// quoted in the status, the log and the error of a verification. The status code is kept.
func TestPeerErrorIsBounded(t *testing.T) {
	for name, text := range map[string]string{
		"short":                        strings.Repeat("x\x1b[2J", 500),
		"longer than the header limit": strings.Repeat("x\x1b[2J", 1<<18),
		"4-byte characters":            strings.Repeat("\U0010ffff", 1500),
	} {
		x := startStock(t, func(mapsyncv1.ReplicationService_SubscribeServer) error { return status.Error(codes.Aborted, text) })
		n := startNode(t, "a", 1, nil)
		s := newInboundStream(n.r, x)
		err := s.runStream(t.Context())
		s.markDown(err)
		_, proof := n.r.dialAndVerify(t.Context(), x)
		if name == "short" && (status.Code(err) != codes.Aborted || status.Code(proof) != codes.Aborted) {
			t.Errorf("%s: status codes: got %s, %s of the verification, want Aborted", name, status.Code(err), status.Code(proof))
		}
		if err == nil || proof == nil {
			t.Fatalf("%s: got errors %v and %v, want both", name, err, proof)
		}
		for what, got := range map[string]string{"status": s.status(n.r.localMaps()).Error, "error": err.Error(), "proof": proof.Error()} {
			if len(got) > 12<<10 || strings.ContainsAny(got, "\x1b\U0010ffff") {
				t.Errorf("%s: %s: got %d bytes: %.60q, want at most %d bytes without \\x1b and \\U0010ffff",
					name, what, len(got), got, 12<<10)
			}
		}
	}
}

// TestPeerErrorKeepsOtherErrors checks that other errors are returned unchanged.
func TestPeerErrorKeepsOtherErrors(t *testing.T) {
	for _, err := range []error{nil, io.EOF, errReceiveTimeout, errRefusedHere} {
		if got := peerError(err); !errors.Is(got, err) {
			t.Errorf("peer error of %v: got %v, want the same error", err, got)
		}
	}
	if got := peerError(status.Error(codes.Unavailable, `a "b"`)); status.Code(got) != codes.Unavailable || status.Convert(got).Message() != `"a \"b\""` {
		t.Errorf("peer error of a status: got %v, want code Unavailable and the message in quotes", got)
	}
}

// TestWelcomeWithLongName checks that the name in an error has at most 255 bytes.
func TestWelcomeWithLongName(t *testing.T) {
	x := startStock(t, func(stream mapsyncv1.ReplicationService_SubscribeServer) error {
		return welcomeWith(stream, &mapsyncv1.Welcome{ProtocolVersion: supportedVersions.highest, Self: &mapsyncv1.Incarnation{Node: strings.Repeat("x", 1<<16)}})
	})
	n := startNode(t, "a", 1, nil)
	_, proof := n.r.dialAndVerify(t.Context(), x)
	for _, err := range []error{newInboundStream(n.r, x).runStream(t.Context()), proof} {
		if err == nil || !strings.Contains(err.Error(), "expected") || len(err.Error()) > 1<<10 {
			t.Errorf("welcome with a long name: got error %.80v, want one with expected, of at most %d bytes", err, 1<<10)
		}
	}
}
