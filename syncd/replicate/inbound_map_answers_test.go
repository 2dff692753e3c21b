package replicate

import (
	"errors"
	"testing"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// TestSubscriptionIsAnsweredOnce has a peer answer a subscription again that it serves already. A
// second full sync of one subscription would let the peer cause any number of scans of the table.
func TestSubscriptionIsAnsweredOnce(t *testing.T) {
	for name, answer := range map[string]func(x *inboundFixture) *mapsyncv1.SubscribeResponse{
		"accepted from 0": func(x *inboundFixture) *mapsyncv1.SubscribeResponse {
			return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Accepted{Accepted: &mapsyncv1.MapAccepted{
				Map: x.in.index, Generation: 1, Reset_: true, Schema: x.in.m.wireSchema,
			}}}
		},
		"accepted at the position": func(x *inboundFixture) *mapsyncv1.SubscribeResponse {
			return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Accepted{Accepted: &mapsyncv1.MapAccepted{
				Map: x.in.index, Generation: 1, Position: x.in.position, Schema: x.in.m.wireSchema,
			}}}
		},
		"pending": func(x *inboundFixture) *mapsyncv1.SubscribeResponse {
			return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Pending{Pending: &mapsyncv1.MapPending{Map: x.in.index}}}
		},
		"refused": func(x *inboundFixture) *mapsyncv1.SubscribeResponse {
			return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Refused{Refused: &mapsyncv1.MapRefused{Map: x.in.index}}}
		},
	} {
		for _, state := range []State{StateSyncing, StateCaughtUp} {
			x := newInboundFixture(t)
			x.handle(stockBatch(x.in.index, 0, 10, 1, 2))
			x.in.state = state
			if err := x.stream.handle(mustMarshal(t, answer(x))); !errors.Is(err, errProtocol) {
				t.Errorf("%s while the map is %s: got error %v, want a protocol error", name, state, err)
			}
			if x.in.sweep || x.in.state != state || x.in.position != 10 {
				t.Errorf("%s while the map is %s: got sweep %t, state %s, position %d, want false, %s and 10",
					name, state, x.in.sweep, x.in.state, x.in.position, state)
			}
		}
	}
}
