package replicate

import (
	"errors"
	"testing"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// TestMapHasOneSubscription has a peer subscribe to a map twice. It may subscribe again after it has
// ended the first subscription, and before this node has removed that one.
func TestMapHasOneSubscription(t *testing.T) {
	_, s := newSubscribedStream(t)
	again := func(index uint32) error {
		return s.subscribe(subscription(index, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}))
	}
	if err := again(2); !errors.Is(err, errProtocol) || len(s.maps) != 1 {
		t.Errorf("second subscription: got error %v, %d map streams, want a protocol error, 1", err, len(s.maps))
	}
	end := &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Unsubscribe{Unsubscribe: &mapsyncv1.MapUnsubscription{Map: 1}}}
	if err := s.handle(end); err != nil {
		t.Fatalf("handle message: got error %v, want nil", err)
	}
	if err := again(2); err != nil {
		t.Errorf("subscription after the end of the first: got %v, want no error", err)
	}
}
