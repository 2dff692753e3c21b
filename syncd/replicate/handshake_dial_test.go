package replicate

import (
	"errors"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// TestHandshakeWithFutureIncarnation checks that a peer whose incarnation is too far in the future ends the
// stream with that reason.
func TestHandshakeWithFutureIncarnation(t *testing.T) {
	x := newInboundFixture(t)
	x.stream.up = false
	future := uint64(time.Now().Add(x.r.opt.MaxClockAhead + time.Hour).UnixNano())
	err := x.stream.handshake(&welcomeStream{welcome: &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Welcome{
		Welcome: &mapsyncv1.Welcome{ProtocolVersion: supportedVersions.highest, Self: &mapsyncv1.Incarnation{Node: "x", Number: future}},
	}}})
	if ahead := (aheadError{}); !errors.As(err, &ahead) || x.stream.up {
		t.Errorf("handshake: got error %v, up %t, want an aheadError and false", err, x.stream.up)
	}
}
