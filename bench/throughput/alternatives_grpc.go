package main

import (
	"context"
	"encoding/json"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// addMethod is the only method of the compared services: one delta per call. The code of a
// generated stub is short enough to be written by hand.
const addMethod = "/mapsync.bench.SinkService/Add"

// serveUnary starts a server whose method calls add with each request.
func serveUnary[T any](add func(*T) error) (addr string, stop func() error, err error) {
	handler := func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		in := new(T)
		if err := decode(in); err != nil {
			return nil, err
		}
		return &emptypb.Empty{}, add(in)
	}
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "mapsync.bench.SinkService",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Add", Handler: handler}},
	}, struct{}{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	return listener.Addr().String(), func() error {
		server.Stop()
		return <-done
	}, nil
}

// dialUnary returns a client that sends the request of entry i.
func dialUnary(addr string, request func(i int) (any, error)) (*alternativeConn, error) {
	client, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	return &alternativeConn{close: client.Close, send: func(ctx context.Context, i, _ int) (int, error) {
		in, err := request(i)
		if err != nil {
			return 0, err
		}
		return 1, client.Invoke(ctx, addMethod, in, &emptypb.Empty{})
	}}, nil
}

// serveTyped receives the generated message of the product's own protocol.
func serveTyped(s *sink) (addr string, stop func() error, err error) {
	return serveUnary(func(d *mapsyncv1.Delta) error { return s.store(d.GetKey(), d.GetValue()) })
}

func dialTyped(addr string, e *entries) (*alternativeConn, error) {
	return dialUnary(addr, func(i int) (any, error) {
		return &mapsyncv1.Delta{
			Key: e.keys[i][:], Value: e.values[i][:], Version: 1,
			Operation: mapsyncv1.Operation_OPERATION_UPDATE,
		}, nil
	})
}

// jsonEntry is a delta as JSON, its bytes in base 64.
type jsonEntry struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

// serveAnyJSON receives JSON in a BytesValue in an Any.
func serveAnyJSON(s *sink) (addr string, stop func() error, err error) {
	return serveUnary(func(in *anypb.Any) error {
		var wrapped wrapperspb.BytesValue
		if err := in.UnmarshalTo(&wrapped); err != nil {
			return err
		}
		var entry jsonEntry
		if err := json.Unmarshal(wrapped.GetValue(), &entry); err != nil {
			return err
		}
		return s.store(entry.Key, entry.Value)
	})
}

func dialAnyJSON(addr string, e *entries) (*alternativeConn, error) {
	return dialUnary(addr, func(i int) (any, error) {
		text, err := json.Marshal(jsonEntry{e.keys[i][:], e.values[i][:]})
		if err != nil {
			return nil, err
		}
		return anypb.New(wrapperspb.Bytes(text))
	})
}
