package feed

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	"mapsync/docs/examples/bundling/flowpb"
)

// busyNode sends batches without end.
type busyNode struct {
	flowpb.UnimplementedReplicationServiceServer
}

func (busyNode) Subscribe(stream grpc.BidiStreamingServer[flowpb.SubscribeRequest, flowpb.SubscribeResponse]) error {
	batch := &flowpb.SubscribeResponse{Message: &flowpb.SubscribeResponse_Batch{Batch: &flowpb.Batch{}}}
	for {
		if err := stream.Send(batch); err != nil {
			return err
		}
	}
}

// TestRunEndsWithContext ends the program while it receives batches, several times: it receives in most of the time.
func TestRunEndsWithContext(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: got error %v, want nil", err)
	}
	server := grpc.NewServer()
	flowpb.RegisterReplicationServiceServer(server, busyNode{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		lines, out := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			err := Run(ctx, out, []string{"-addr", listener.Addr().String(), "-interval", "1ms"})
			ended <- errors.Join(err, out.Close())
		}()
		if _, err := lines.Read(make([]byte, 1)); err != nil {
			t.Fatalf("read the first line: got error %v, want nil", err)
		}
		go func() { _, _ = io.Copy(io.Discard, lines) }()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("end of the context: got error %v, want nil", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("end of the context: the program goes on, want its end")
		}
	}
	server.Stop()
	if err := <-served; err != nil {
		t.Errorf("serve: got error %v, want nil", err)
	}
}
