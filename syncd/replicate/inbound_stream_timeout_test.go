package replicate

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// TestBlockedSubscribeTimesOut checks that a stream ends if the server answers pings and allows no
// more streams.
func TestBlockedSubscribeTimesOut(t *testing.T) {
	x := startStock(t, func(stream mapsyncv1.ReplicationService_SubscribeServer) error {
		if err := welcome(stream); err != nil {
			return err
		}
		<-stream.Context().Done()
		return nil
	}, grpc.MaxConcurrentStreams(1))
	n := startNode(t, "a", 1, nil, func(o *Options) { o.receiveTimeout = 50 * time.Millisecond })
	conn, err := n.dial(x.Addr)
	if err != nil {
		t.Fatalf("dial: got error %v, want nil", err)
	}
	defer conn.Close()
	first, err := mapsyncv1.NewReplicationServiceClient(conn).Subscribe(t.Context())
	if err != nil {
		t.Fatalf("open stream: got error %v, want nil", err)
	}
	if _, err := n.r.exchangeHello(first); err != nil { // the limit applies from here on
		t.Fatalf("exchange hello: got error %v, want nil", err)
	}
	n.r.opt.Dial = func(Peer) (*grpc.ClientConn, error) { return conn, nil }
	err = newInboundStream(n.r, x).runStream(t.Context())
	if !errors.Is(err, errReceiveTimeout) || n.r.Stats().ReceiveTimeouts != 1 {
		t.Errorf("end of the stream: got %v, %d timeouts, want an error with errReceiveTimeout and 1", err, n.r.Stats().ReceiveTimeouts)
	}
}
