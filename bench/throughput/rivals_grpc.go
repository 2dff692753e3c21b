package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// addMethod is the one method of the services compared: a delta a call. What a
// generated stub would do is short enough to be written out.
const addMethod = "/mapsync.bench.SinkService/Add"

// openUnary starts a server whose method hands each request to add, and a client.
func openUnary[T any](add func(*T) error) (*grpc.ClientConn, func() error, error) {
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
		return nil, nil, err
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	stop := func() error {
		server.Stop()
		return <-done
	}
	client, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return client, func() error { return errors.Join(client.Close(), stop()) }, nil
}

// openTyped carries the generated message of the product's own contract.
func openTyped(s *sink, e *entries) (*rivalConn, error) {
	client, closeAll, err := openUnary(func(d *mapsyncv1.Delta) error { return s.store(d.GetKey(), d.GetValue()) })
	if err != nil {
		return nil, err
	}
	return &rivalConn{close: closeAll, send: func(ctx context.Context, i, _ int) error {
		in := &mapsyncv1.Delta{
			Key: e.keys[i][:], Value: e.values[i][:], Version: 1,
			Operation: mapsyncv1.Operation_OPERATION_UPDATE,
		}
		return client.Invoke(ctx, addMethod, in, &emptypb.Empty{})
	}}, nil
}

// jsonEntry is a delta as JSON, its bytes in base 64.
type jsonEntry struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

// openAnyJSON carries JSON in a BytesValue in an Any.
func openAnyJSON(s *sink, e *entries) (*rivalConn, error) {
	client, closeAll, err := openUnary(func(in *anypb.Any) error {
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
	if err != nil {
		return nil, err
	}
	return &rivalConn{close: closeAll, send: func(ctx context.Context, i, _ int) error {
		text, err := json.Marshal(jsonEntry{e.keys[i][:], e.values[i][:]})
		if err != nil {
			return err
		}
		in, err := anypb.New(wrapperspb.Bytes(text))
		if err != nil {
			return err
		}
		return client.Invoke(ctx, addMethod, in, &emptypb.Empty{})
	}}, nil
}
