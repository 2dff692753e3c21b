package replicate

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// TestServerWithoutStreams: a server that answers pings and allows no stream more does not hold up a link.
func TestServerWithoutStreams(t *testing.T) {
	x := startStock(t, func(stream mapsyncv1.ReplicationService_SubscribeServer) error {
		if err := welcome(stream); err != nil {
			return err
		}
		<-stream.Context().Done()
		return nil
	}, grpc.MaxConcurrentStreams(1))
	n := startNode(t, "a", 1, nil, func(o *Options) { o.silence = 50 * time.Millisecond })
	conn, err := n.dial(x.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	first, err := mapsyncv1.NewReplicationServiceClient(conn).Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.r.welcome(first); err != nil { // from here on the limit is known
		t.Fatal(err)
	}
	n.r.opt.Dial = func(Peer) (*grpc.ClientConn, error) { return conn, nil }
	err = newLink(n.r, x).connect(t.Context())
	if !errors.Is(err, errSilent) || n.r.Stats().Silences != 1 {
		t.Errorf("ended with %v, %d silences", err, n.r.Stats().Silences)
	}
}
